from support.s3server import private_s3_server, s3_server, store  # noqa: F401
