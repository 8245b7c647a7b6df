"""A local server that speaks S3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from pyarrow import fs


@contextmanager
def s3_server() -> Iterator[str]:
    """Its address, which is in the environment meanwhile, with keys that it takes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = {"AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    names |= {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "secret-of-who"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        try:
            _wait(address, process)
            yield address
        finally:
            process.terminate()
            process.wait()


def put_object(bucket: str, path: str, content: bytes) -> None:
    """The bucket is made if it is not there."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    filesystem = fs.S3FileSystem(region="us-east-1", endpoint_override=endpoint, allow_bucket_creation=True)
    filesystem.create_dir(bucket)
    with filesystem.open_output_stream(f"{bucket}/{path}", compression=None) as stream:
        stream.write(content)


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            with urlopen(f"{address}/moto-api/", timeout=5):
                return
        except (URLError, ConnectionError):
            assert process.poll() is None
            time.sleep(0.1)
    raise AssertionError("the server did not come up")
