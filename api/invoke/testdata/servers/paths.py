"""Answers each request with the parts of its path, as servers that run on Python find them."""
import json
import os
import sys
import threading
from urllib.parse import unquote, urlparse, urlsplit
from wsgiref.simple_server import WSGIRequestHandler, make_server


class Handler(WSGIRequestHandler):
    def get_environ(self):
        return super().get_environ() | {"raw.target": self.requestline.split()[1], "http.path": self.path}

    def log_message(self, *_):
        pass


def attempt(read):
    try:
        return unquote(read()).split("/")[1:]
    except ValueError:
        return None


def answer(environ, start):
    target, path = environ["raw.target"], environ["http.path"]
    wsgi = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({
        "python wsgi": wsgi.split("/")[1:],
        "python http.server": attempt(lambda: path.split("?", 1)[0]),
        "python urlparse": attempt(lambda: urlparse(target).path),
        "python urlsplit": attempt(lambda: urlsplit(target).path),
    }).encode()]


server = make_server("127.0.0.1", 0, answer, handler_class=Handler)
print(server.server_port, flush=True)


def end():
    sys.stdin.read()  # until the test has ended
    os._exit(0)


threading.Thread(target=end, daemon=True).start()
server.serve_forever()
