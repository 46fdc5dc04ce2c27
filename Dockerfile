# All three programs in one small image. It runs what it is told: docker run push-gateway producers --help

FROM rust:1.95-slim-bookworm AS build
# The allocator is built with make.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package auth-proxy --package producers --package consumers

# The same Debian as above, for the same libc; nothing else is linked.
FROM debian:bookworm-slim
COPY --from=build /src/target/release/auth-proxy /src/target/release/producers /src/target/release/consumers /usr/local/bin/
# A number, so that an orchestrator can see that it is not root. No such user needs to exist.
USER 10001:10001
EXPOSE 9000
CMD ["auth-proxy"]
