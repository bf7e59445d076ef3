# The published image: the binary of the release and the root certificates, nothing else. See Dockerfile for an image
# from source. .github/workflows/publish.yml puts the files where this copies them from.
FROM scratch
ARG TARGETARCH
COPY --chown=65532:65532 image/${TARGETARCH}/ /
USER 65532:65532
ENV CRCR_LISTEN=0.0.0.0:8080 \
    CRCR_STORE=sqlite:/data/crcr.db \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
EXPOSE 8080
VOLUME /data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=12s --start-period=60s CMD ["/crcr", "relay", "health"]
ENTRYPOINT ["/crcr"]
CMD ["relay", "serve"]
