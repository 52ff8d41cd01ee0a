"""The S3 ledger with the user's credentials, and what verifying a version finds in it."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speculator_operator.api.base import InvalidResource
from speculator_operator.api.speculator import Speculator
from speculator_operator.cli.cluster import Cluster, KubeObject
from speculator_operator.cli.errors import CliError, NotFound
from speculator_operator.cli.history import ledger_rows
from speculator_operator.cli.options import Credentials
from speculator_operator.cli.series import Series, series
from speculator_operator.kube.ledger import S3Credentials, s3_client
from speculator_operator.kube.observe import secret_values
from speculator_operator.resources.configmap import store_settings
from speculator_operator.rollout import verify_record
from speculator_operator.rollout.evidence import seen
from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Block
from speculator_runtime.storage import (
    CorruptObjectError,
    CredentialsError,
    Ledger,
    ObjectNotFoundError,
    StoreError,
    evidence_sha256,
)
from speculator_runtime.storage.chain import StoredManifest, check_chain

OWN = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
FLEET = {Verdict.FALLBACK, Verdict.RECOVERED}
"""Decisions on the stable drafter's holdback: their blocks lie under whichever version was on trial."""


@dataclass(frozen=True)
class Finding:
    """One thing that was verified.

    decision: whether it is a verdict. recomputed: whether its evidence gave it again.
    """

    what: str
    agrees: bool
    message: str
    decision: bool = False
    recomputed: bool = False


class History:
    """The ledger of one Speculator, read only. Raises CliError for whatever goes wrong."""

    def __init__(self, cluster: Cluster, obj: KubeObject, whose: Credentials, endpoint: str | None) -> None:
        try:
            speculator = Speculator.parse(obj)
        except InvalidResource as error:
            raise CliError(f"{error}; does this plugin have the same version as the operator?") from error
        self.name = speculator.metadata.name
        self.problems: list[str] = []
        settings = store_settings(speculator)
        if endpoint is not None:
            settings = settings.model_copy(update={"endpoint": endpoint})
        self.location = f"s3://{settings.bucket}/{settings.prefix}"
        credentials, self._whose = _credentials(cluster, speculator, whose)
        try:
            self.ledger = Ledger(settings, single_writer=True, client=s3_client(settings, credentials))
        except StoreError as error:
            raise self._failed(error) from error

    def stored(self) -> list[StoredManifest]:
        """All published versions that can be read, ascending; what is wrong with others is added to `problems`."""
        found = []
        try:
            for number in self.ledger.version_numbers():
                try:
                    found.append(self.ledger.read_stored(number))
                except ObjectNotFoundError:  # Claimed, and still being uploaded or given up.
                    continue
                except CorruptObjectError as error:
                    self.problems.append(str(error))
        except StoreError as error:
            raise self._failed(error) from error
        return found

    def verdicts(self, versions: Iterable[int]) -> list[VerdictRecord]:
        """All decisions on these versions in order."""
        try:
            found = [record for number in versions for record in self.ledger.read_verdicts(number)]
        except StoreError as error:
            raise self._failed(error) from error
        return sorted(found, key=lambda record: record.sequence)

    def rows(self) -> list[KubeObject]:
        """For `history` and `diff`."""
        stored = self.stored()
        rows, hidden = ledger_rows(
            self.name, self.location, stored, self.verdicts(one.manifest.version for one in stored)
        )
        self.problems += hidden
        return rows

    def series(self) -> Series:
        """For `plot`: all decisions and all blocks."""
        stored = self.stored()
        numbers = [one.manifest.version for one in stored]
        verdicts = self.verdicts(numbers)
        try:
            blocks = self._evidence(numbers)
        except StoreError as error:
            raise self._failed(error) from error
        return series(verdicts, blocks, [one.manifest.created for one in stored])

    def verify(self, version: int) -> list[Finding]:
        """Recompute each decision on a version, and check where it comes from. Raises NotFound for an unknown one."""
        try:
            numbers = self.ledger.version_numbers()
            if version not in numbers:
                raise NotFound(
                    f"There is no version {version} in {self.location}; there are: "
                    f"{', '.join(map(str, numbers)) or 'none'}."
                )
            return [self._chain(version, numbers), *self._decisions(version, numbers)]
        except StoreError as error:
            raise self._failed(error) from error

    def _chain(self, version: int, numbers: Sequence[int]) -> Finding:
        what = f"manifest of version {version}"
        stored = {}
        for number in numbers:
            try:
                stored[number] = self.ledger.read_stored(number)
            except ObjectNotFoundError:
                continue
            except CorruptObjectError as error:
                if number == version:
                    return Finding(what, False, str(error))
        if version not in stored:
            return Finding(what, False, "claimed, but never published: there is no manifest.json")
        broken = [line for line in check_chain(stored) if line.startswith(f"version {version}:")]
        if broken:
            return Finding(what, False, "; ".join(broken))
        parent = stored[version].manifest.parent
        after = (
            f"follows version {parent.version}, whose manifest is unchanged" if parent else "is the first of its line"
        )
        return Finding(what, True, f"sha256 {stored[version].sha256[:12]} {after}")

    def _decisions(self, version: int, numbers: Sequence[int]) -> list[Finding]:
        try:
            records = self.ledger.read_verdicts(version)
        except CorruptObjectError as error:
            return [Finding(f"verdicts on version {version}", False, str(error))]
        return [self._decision(record, numbers if record.verdict in FLEET else (version,)) for record in records]

    def _decision(self, record: VerdictRecord, versions: Iterable[int]) -> Finding:
        what = f"verdict {record.sequence}, {record.verdict.value} ({record.reason})"
        through = record.parameters.get("through")
        try:
            blocks = self._evidence(versions)
            agrees, message = verify_record(record, blocks)
            if record.decided_by == "gate" and isinstance(through, str):
                return Finding(what, agrees, message, decision=True, recomputed=agrees)
            # A person decided. What they saw is still in the record, and must still be there.
            if isinstance(through, str) and evidence_sha256(seen(blocks, through)) != record.evidence_sha256:
                agrees, message = False, f"decided by {record.decided_by}; the evidence it shows has changed since"
        except (CorruptObjectError, ValueError) as error:
            agrees, message = False, f"it cannot be recomputed: {error}"
        return Finding(what, agrees, message, decision=True)

    def _evidence(self, versions: Iterable[int]) -> list[Block]:
        return [block for number in versions for block in self.ledger.read_evidence(number)]

    def _failed(self, error: StoreError) -> CliError:
        hint = f" (credentials: {self._whose}; --credentials chooses)" if isinstance(error, CredentialsError) else ""
        text = str(error)
        return CliError(f"{text[:1].upper()}{text[1:]}{hint}.")


def _credentials(cluster: Cluster, speculator: Speculator, whose: Credentials) -> tuple[S3Credentials | None, str]:
    """The credentials, or None for boto's chain; and whose they are, in words."""
    ref = speculator.spec.storage.s3.credentials_secret_ref
    has_own = any(os.environ.get(name) for name in OWN)
    if whose is Credentials.OWN or (whose is Credentials.AUTO and (has_own or ref is None)):
        return None, "your own, from this shell"
    if ref is None:
        raise CliError(
            f"Speculator {speculator.metadata.name} names no Secret with S3 credentials; use --credentials own."
        )
    values = secret_values(cluster.secret(ref.name))
    missing = [key for key in (ref.access_key_id, ref.secret_access_key) if not values.get(key)]
    if missing:
        raise CliError(f"Secret {ref.name} in namespace {cluster.namespace} has no {' and no '.join(missing)}.")
    found = S3Credentials(values[ref.access_key_id].strip(), values[ref.secret_access_key].strip())
    return found, f"of secret {ref.name}"
