# docker build --tag accuracy . && docker run --rm --volume "$PWD:/work" accuracy experiment=demo
# On a CPU. A function of yours is found in the folder that is mounted: accuracy variant=callable variant.fn=my_file.my_attention
FROM python:3.11-slim
COPY . /attention-accuracy
WORKDIR /attention-accuracy
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu .
WORKDIR /work
RUN accuracy --version && accuracy experiment=demo dry_run=true
ENTRYPOINT ["accuracy"]
