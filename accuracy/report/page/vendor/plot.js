// What the report draws with: every name here costs bytes in each page.
export { areaY, axisX, axisY, dot, gridY, line, plot, pointer, ruleX, ruleY, text, tip } from "@observablehq/plot";
