"""MLflow's own tracking server: `python mlflow_server.py FOLDER` prints its port.

FOLDER/authorization gets the Authorization header of each request that has one.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from werkzeug.serving import make_server


def main(folder: Path) -> None:
    os.environ.update(
        MLFLOW_ALLOW_FILE_STORE="true",
        MLFLOW_DISABLE_TELEMETRY="true",
        _MLFLOW_SERVER_FILE_STORE=str(folder / "store"),
        _MLFLOW_SERVER_ARTIFACT_ROOT=str(folder / "store"),
    )
    from mlflow.server import app

    def noting(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if header := environ.get("HTTP_AUTHORIZATION"):
            with (folder / "authorization").open("a") as file:
                file.write(f"{header}\n")
        return app(environ, start_response)

    server = make_server("127.0.0.1", 0, noting, threaded=True)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
