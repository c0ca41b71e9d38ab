"""A server that speaks as much of S3 as blobs need: objects, uploads in parts, deletion of many."""

import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

KEY = "AKIDTEST"


class BucketServer(ThreadingHTTPServer):
    """Serves one bucket, `bucket`, on a free port.

    Attributes:
        objects: What is in it, by key.
        refuses: The status that every request gets, 0 for none.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.refuses = 0
        self.puts = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _bucket(self) -> BucketServer:
        assert isinstance(self.server, BucketServer)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _begin(self) -> tuple[str, dict[str, str], bytes] | None:
        """Return the key, the query and the body, or None where the request is refused."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        refused = self._bucket.refuses
        if not refused and f"Credential={KEY}/" not in (self.headers.get("authorization") or ""):
            refused = 403
        if not refused and bucket != "bucket":
            refused = 404
        if refused:
            self._reply(refused, b"<Error><Code>Refused</Code></Error>")
            return None
        return key, query, body

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        if request := self._begin():
            data = self._bucket.objects.get(request[0])
            if data is None:
                self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._reply(200, data, ETag='"e"', Last_Modified="Fri, 02 Jan 2026 12:00:00 GMT")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        if request := self._begin():
            key, query, body = request
            self._bucket.puts += 1
            if "uploadId" in query:
                self._bucket.uploads[query["uploadId"]][int(query["partNumber"])] = body
            else:
                self._bucket.objects[key] = body
            self._reply(200, ETag='"e"')

    def do_POST(self) -> None:
        if request := self._begin():
            key, query, body = request
            if "uploads" in query:
                upload = uuid.uuid4().hex
                self._bucket.uploads[upload] = {}
                reply = f"<Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{upload}</UploadId>"
                self._reply(200, f"<InitiateMultipartUploadResult>{reply}</InitiateMultipartUploadResult>".encode())
            elif "uploadId" in query:
                parts = self._bucket.uploads.pop(query["uploadId"])
                self._bucket.objects[key] = b"".join(data for _, data in sorted(parts.items()))
                reply = f"<Bucket>bucket</Bucket><Key>{key}</Key><ETag>e</ETag>"
                self._reply(200, f"<CompleteMultipartUploadResult>{reply}</CompleteMultipartUploadResult>".encode())
            elif "delete" in query:
                keys = re.findall("<Key>(.*?)</Key>", body.decode())
                for name in keys:
                    self._bucket.objects.pop(name, None)
                reply = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in keys)
                self._reply(200, f"<DeleteResult>{reply}</DeleteResult>".encode())

    def do_DELETE(self) -> None:
        if request := self._begin():
            self._bucket.objects.pop(request[0], None)
            self._reply(204)
