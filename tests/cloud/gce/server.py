"""Compute Engine, as far as the driver speaks to it, and the metadata server. Requests and responses are checked against Google's own
description of the API (the discovery document in google-api-python-client); what they do is ours.

Beside the API the servers of its access tokens are here: whether a token that the key of a service account signed is good, Google's own library
says.

Serves until its standard input ends; the port is on standard output. Tests speak to it at /test: GET has all that there is, POST sets what is
to go wrong and who may do what.
"""
import base64, hashlib, json, os, re, socket, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
import google.auth.exceptions, google.auth.jwt
import importlib.util
package = importlib.util.find_spec("googleapiclient").submodule_search_locations[0]
DOCUMENT = json.load(open(os.path.join(package, "discovery_cache/documents/compute.v1.json")))
SCHEMAS = dict(DOCUMENT["schemas"])
for other in ["sts.v1", "iamcredentials.v1"]:
    SCHEMAS.update(json.load(open(os.path.join(package, f"discovery_cache/documents/{other}.json")))["schemas"])
PROJECT, REGION, ZONES = "p-1", "europe-west3", ["europe-west3-a", "europe-west3-b", "europe-west3-c"]
TOKEN = "ya29.a-secret-token"
ACCOUNT, POOL = "longshore@p-1.iam.gserviceaccount.com", "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k"
SUBJECT, FEDERATED, IMPERSONATED = "a-token-of-the-cluster", "ya29.federated-secret", "ya29.impersonated-secret"
COMPUTE, IAM = "https://www.googleapis.com/auth/compute", "https://www.googleapis.com/auth/iam"
BASE = "https://www.googleapis.com/compute/v1/projects/"
USED = ["disks", "regionDisks", "instances", "zoneOperations", "regionOperations", "globalOperations", "snapshots", "images", "zones"]

routes = []
for resource in USED:
    for name, method in DOCUMENT["resources"][resource]["methods"].items():
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", method["flatPath"])
        routes.append((method["httpMethod"], re.compile(f"/{DOCUMENT['servicePath']}{pattern}"), f"{resource}.{name}", method))

# "IAM permissions" of each method in the API's reference.
RIGHTS = {
    "disks.insert": ["disks.create", "disks.setLabels"], "disks.get": ["disks.get"], "disks.delete": ["disks.delete"],
    "disks.aggregatedList": ["disks.list"], "disks.resize": ["disks.resize"], "disks.update": ["disks.update"],
    "disks.setLabels": ["disks.setLabels"], "instances.get": ["instances.get"], "instances.list": ["instances.list"],
    "instances.attachDisk": ["instances.attachDisk", "disks.use"], "instances.detachDisk": ["instances.detachDisk"],
    "snapshots.insert": ["snapshots.create", "snapshots.setLabels", "disks.createSnapshot"], "snapshots.get": ["snapshots.get"],
    "snapshots.delete": ["snapshots.delete"], "snapshots.list": ["snapshots.list"], "zones.list": ["zones.list"],
    "images.insert": ["images.create", "images.setLabels"],
    "zoneOperations.get": ["zoneOperations.get"], "zoneOperations.list": ["zoneOperations.list"],
    "regionOperations.get": ["regionOperations.get"], "regionOperations.list": ["regionOperations.list"],
    "globalOperations.get": ["globalOperations.get"],
}
for name, rights in list(RIGHTS.items()):
    if name.startswith("disks."):
        RIGHTS["regionDisks." + name[6:]] = rights


def rights_for(method, body):
    rights = list(RIGHTS.get(method, [method]))
    if "sourceSnapshot" in body:
        rights.append("snapshots.useReadOnly")
    if "sourceImage" in body:
        rights.append("images.useReadOnly")
    if method.endswith("isks.insert") and "sourceDisk" in body:
        rights.append("disks.useReadOnly")
    if body.get("mode") == "READ_ONLY":
        rights = ["instances.attachDisk", "disks.useReadOnly"]
    return rights


class Refused(Exception):
    def __init__(self, status, reason, message):
        self.status, self.reason, self.message = status, reason, message


class Lost(Exception):
    pass


def check(schema, value, path, sent):
    """What is wrong with a value by the description."""
    schema = SCHEMAS[schema["$ref"]] if "$ref" in schema else schema
    kind, wrong = schema.get("type"), []
    if "properties" in schema or kind == "object":
        if not isinstance(value, dict):
            return [f"{path}: no object"]
        for key, inner in value.items():
            part = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if part is None:
                wrong.append(f"{path}.{key}: no such field")
                continue
            if sent and "[Output Only]" in part.get("description", "")[:30]:
                wrong.append(f"{path}.{key}: only in answers")
            wrong += check(part, inner, f"{path}.{key}", sent)
    elif kind == "array":
        if not isinstance(value, list):
            return [f"{path}: no list"]
        for inner in value:
            wrong += check(schema["items"], inner, path + "[]", sent)
    elif kind == "string":
        if not isinstance(value, str):
            wrong.append(f"{path}: no text: {value!r}")
        elif schema.get("format") in ("int64", "uint64") and not re.fullmatch(r"-?\d+", value):
            wrong.append(f"{path}: no number: {value}")
        elif "enum" in schema and value not in schema["enum"]:
            wrong.append(f"{path}: none of the values: {value}")
        elif "pattern" in schema and not re.fullmatch(schema["pattern"], value):
            wrong.append(f"{path}: not as {schema['pattern']}: {value}")
    elif kind == "boolean" and not isinstance(value, bool) or kind == "integer" and not isinstance(value, int):
        wrong.append(f"{path}: no {kind}: {value!r}")
    return wrong


lock = threading.RLock()
disks, snapshots, images, instances, operations, answered = {}, {}, {}, {}, {}, {}
# The operations that are not done, where what has a number is, and which snapshots are uploaded until when.
running, names, uploads = {}, {}, {}
violations, counts, faults, used = [], {}, [], set()
settings = {"delay": 0.05, "upload": 0, "failed_stay": False, "rights": None, "page": 500, "room": 16, "zones": ZONES}
last = 10**18


def number():
    global last
    last += 7
    return str(last)


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%S.000-00:00", time.gmtime())


def fingerprint(labels):
    return base64.b64encode(hashlib.md5(json.dumps(labels, sort_keys=True).encode()).digest()[:8]).decode()


def missing(path):
    return Refused(404, "notFound", f"The resource 'projects/{PROJECT}/{path}' was not found")


def found(all, scope, which, kind):
    """By name or number."""
    for key in [(scope, which), names.get(which)]:
        resource = all.get(key)
        if resource is not None and key[0] == scope and which in (key[1], resource["id"]):
            return resource
    raise missing(f"{scope}/{kind}/{which}")


def check_free(all, scope, name, kind):
    if (scope, name) in all:
        raise Refused(409, "alreadyExists", f"The resource 'projects/{PROJECT}/{scope}/{kind}/{name}' already exists")


def check_ready(resource):
    if resource["status"] != "READY":
        raise Refused(400, "resourceNotReady", f"The resource '{resource['selfLink'].split('/v1/')[1]}' is not ready")


def keep(all, scope, name, resource):
    all[(scope, name)] = resource
    names[resource["id"]] = (scope, name)


def fault(method, kinds):
    for rule in faults:
        if rule["method"] == method and rule["kind"] in kinds:
            rule["times"] = rule.get("times", 1) - 1
            if rule["times"] <= 0:
                faults.remove(rule)
            return rule
    return None


def begin(method, scope, target, target_id, kind, effect, request, undo=lambda: None):
    name = "operation-" + number()
    operation = {"kind": "compute#operation", "name": name, "id": number(), "operationType": kind, "targetLink": target,
                 "targetId": target_id, "status": "PENDING", "progress": 0, "insertTime": now(),
                 "selfLink": f"{BASE}{PROJECT}/{scope}/operations/{name}"}
    if request:
        operation["clientOperationId"] = request
    for key in ("zone", "region"):
        if scope.startswith(key):
            operation[key] = f"{BASE}{PROJECT}/{scope}"
    late, fails = fault(method, ["late"]), fault(method, ["fail"])
    end = time.time() + (late["delay"] if late else settings["delay"])
    operations[(scope, name)] = running[(scope, name)] = [end, effect, undo, fails, operation]
    return operation


def pump():
    for key, (end, effect, undo, fails, operation) in list(running.items()):
        if time.time() < end:
            operation["status"] = "RUNNING"
            continue
        try:
            if fails:
                undo()
                raise Refused(400, fails["code"], fails.get("message", "it failed"))
            effect()
        except Refused as refused:
            errors = [{"code": refused.reason, "message": refused.message}] if refused.reason else []
            operation.update(error={"errors": errors}, httpErrorStatusCode=refused.status, httpErrorMessage="BAD REQUEST")
        operation.update(status="DONE", progress=100, endTime=now())
        del running[key]
    for snapshot in snapshots.values():
        if snapshot["status"] == "UPLOADING" and time.time() >= uploads[snapshot["id"]]:
            snapshot["status"] = "READY"


def matches(resource, text):
    if not text:
        return True
    key, sign, value = re.fullmatch(r'(\S+) (=|!=) "([^"]*)"', text).groups()
    have = resource
    for part in key.split(".", 1):
        have = (have or {}).get(part)
    return (have == value) == (sign == "=")


def page(resources, query, kind):
    every = sorted((resource for resource in resources if matches(resource, query.get("filter"))), key=lambda one: one["id"])
    start, size = int(query.get("pageToken", 0)), min(settings["page"], int(query.get("maxResults", 500)))
    answer = {"kind": kind, "items": every[start:start + size]}
    if start + size < len(every):
        answer["nextPageToken"] = str(start + size)
    return answer


def shown(disk):
    return dict(disk, users=disk["users"][:50])


def remove(all, key, resource):
    """Unless another request has removed it, or it is another of the name by now."""
    if all.get(key) is not resource:
        raise Refused(404, "RESOURCE_NOT_FOUND", f"The resource '{resource['selfLink'].split('/v1/')[1]}' was not found")
    del all[key]


def resource_of(url):
    """The scope and name in a URL of a request."""
    parts = url.split("projects/")[-1].split("/")
    return "/".join(parts[1:-2]), parts[-1]


def disks_(action, method, scope, path, query, body):
    request = query.get("requestId")
    if action == "insert":
        name = body["name"]
        check_free(disks, scope, name, "disks")
        size = int(body["sizeGb"])
        made = dict(body, id=number(), status="CREATING", users=[], creationTimestamp=now(), kind="compute#disk", labels=body.get("labels", {}),
                    selfLink=f"{BASE}{PROJECT}/{scope}/disks/{name}", labelFingerprint=fingerprint(body.get("labels", {})))
        made.pop("params", None)
        made["zone" if scope.startswith("zone") else "region"] = f"{BASE}{PROJECT}/{scope}"
        if "sourceSnapshot" in body:
            source = found(snapshots, *resource_of(body["sourceSnapshot"]), "snapshots")
            made["sourceSnapshotId"] = source["id"]
            if size < int(source["diskSizeGb"]):
                raise Refused(400, "invalid", "sizeGb is less than the snapshot's")
        if "sourceImage" in body:
            source = found(images, *resource_of(body["sourceImage"]), "images")
            made["sourceImageId"] = source["id"]
            check_ready(source)
            if size < int(source["diskSizeGb"]):
                raise Refused(400, "invalid", "sizeGb is less than the image's")
        if "sourceDisk" in body:
            made["sourceDiskId"] = found(disks, *resource_of(body["sourceDisk"]), "disks")["id"]
        keep(disks, scope, name, made)
        return begin(method, scope, made["selfLink"], made["id"], "insert", lambda: made.update(status="READY"), request,
                     lambda: disks.pop((scope, name), None))
    disk = found(disks, scope, path.get("disk") or path["resource"], "disks")
    key = (scope, disk["name"])
    if action == "get":
        return shown(disk)
    if action == "delete":
        if path["disk"].isdigit():
            raise missing(f"{scope}/disks/{path['disk']}")
        if disk["users"]:
            raise Refused(400, "resourceInUseByAnotherResource", f"The disk resource '{key}' is already being used by '{disk['users'][0]}'")
        before, disk["status"] = disk["status"], "DELETING"
        return begin(method, scope, disk["selfLink"], disk["id"], "delete", lambda: remove(disks, key, disk), request,
                     lambda: disk.update(status=before))
    if action == "setLabels":
        if fault(method, ["conflict"]):
            disk["labels"]["other"] = number()
            disk["labelFingerprint"] = fingerprint(disk["labels"])
        if body["labelFingerprint"] != disk["labelFingerprint"]:
            raise Refused(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
        def label():
            disk.update(labels=body["labels"], labelFingerprint=fingerprint(body["labels"]))
        return begin(method, scope, disk["selfLink"], disk["id"], "setLabels", label, request)
    if action == "resize" and int(body["sizeGb"]) <= int(disk["sizeGb"]):
        raise Refused(400, "invalid", "Disk cannot be resized to a smaller size")
    if action in ("resize", "update"):
        changed = body if action == "resize" else {field: body[field] for field in query["updateMask"].split(",")}
        return begin(method, scope, disk["selfLink"], disk["id"], action, lambda: disk.update(changed), request)
    raise Refused(501, "notImplemented", method)


def instances_(action, method, scope, path, query, body):
    if action == "list":
        return page([machine for (place, _), machine in instances.items() if place == scope], query, "compute#instanceList")
    machine = found(instances, scope, path["instance"], "instances")
    link = f"{BASE}{PROJECT}/{scope}/instances/{machine['name']}"
    if action == "get":
        return machine
    pending = [entry for entry in running.values() if entry[4]["targetLink"] == link]
    if len(pending) >= 32:
        raise Refused(403, "rateLimitExceeded", "Too many pending operations on a resource.")
    if action == "attachDisk":
        disk = found(disks, *resource_of(body["source"]), "disks")
        def attach():
            if len(machine["disks"]) >= settings["room"]:
                raise Refused(400, "UNSUPPORTED_OPERATION", f"Exceeded limit 'maximum_persistent_disks' on resource '{machine['name']}'. "
                              f"Maximum attached persistent disks count should be less than or equal to [{settings['room']}].")
            if disk["status"] != "READY":
                raise Refused(400, "RESOURCE_NOT_READY", f"The resource '{disk['name']}' is not ready")
            if disk["users"] and not (body.get("mode") == "READ_ONLY" or disk.get("accessMode") == "READ_WRITE_MANY"):
                raise Refused(400, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", f"The disk resource '{disk['name']}' is already being used by '{disk['users'][0]}'")
            disk["users"].append(link)
            disk["lastAttachTimestamp"] = now()
            machine["disks"].append({"deviceName": body["deviceName"], "source": disk["selfLink"], "mode": body.get("mode", "READ_WRITE")})
        return begin(method, scope, link, machine["id"], "attachDisk", attach, query.get("requestId"))
    if action == "detachDisk":
        device = query["deviceName"]
        if not any(disk["deviceName"] == device for disk in machine["disks"]):
            raise Refused(400, "invalid", f"Invalid value for field 'disk': '{device}'. No attached disk found with device name '{device}'")
        if machine["status"] == "SUSPENDED":
            raise Refused(400, "resourceNotReady", f"The resource '{link.split('/v1/')[1]}' is not ready")
        # Whatever is attached by this name when it ends, however late that is.
        def detach():
            for attached in [disk for disk in machine["disks"] if disk["deviceName"] == device]:
                machine["disks"].remove(attached)
                disk = disks.get(resource_of(attached["source"]))
                if disk:
                    disk["users"].remove(link)
        return begin(method, scope, link, machine["id"], "detachDisk", detach, query.get("requestId"))
    raise Refused(501, "notImplemented", method)


def snapshots_(action, method, scope, path, query, body):
    if action == "insert":
        name = body["name"]
        check_free(snapshots, scope, name, "snapshots")
        disk = found(disks, *resource_of(body["sourceDisk"]), "disks")
        made = dict(body, id=number(), status="CREATING", diskSizeGb=disk["sizeGb"], sourceDisk=disk["selfLink"], sourceDiskId=disk["id"],
                    creationTimestamp=now(), kind="compute#snapshot", selfLink=f"{BASE}{PROJECT}/global/snapshots/{name}")
        if "diskEncryptionKey" in disk:
            made["snapshotEncryptionKey"] = {"kmsKeyName": disk["diskEncryptionKey"]["kmsKeyName"] + "/cryptoKeyVersions/1"}
        keep(snapshots, scope, name, made)
        # It is of one instant, and uploaded afterwards.
        def taken():
            uploads[made["id"]] = time.time() + settings["upload"]
            made["status"] = "UPLOADING"
        return begin(method, scope, made["selfLink"], made["id"], "insert", taken, query.get("requestId"), lambda: snapshots.pop((scope, name), None))
    if action == "list":
        return page(snapshots.values(), query, "compute#snapshotList")
    snapshot = found(snapshots, scope, path["snapshot"], "snapshots")
    if action == "get":
        return snapshot
    if action == "delete":
        if any(image.get("sourceSnapshotId") == snapshot["id"] and image["status"] == "PENDING" for image in images.values()):
            raise Refused(400, "resourceInUseByAnotherResource", f"The snapshot resource '{snapshot['name']}' is already being used")
        return begin(method, scope, snapshot["selfLink"], snapshot["id"], "delete", lambda: remove(snapshots, (scope, snapshot["name"]), snapshot),
                     query.get("requestId"))
    raise Refused(501, "notImplemented", method)


def images_(action, method, scope, path, query, body):
    if action == "insert":
        name = body["name"]
        check_free(images, scope, name, "images")
        source = found(snapshots, *resource_of(body["sourceSnapshot"]), "snapshots")
        check_ready(source)
        made = dict(body, id=number(), status="PENDING", diskSizeGb=source["diskSizeGb"], sourceSnapshot=source["selfLink"],
                    sourceSnapshotId=source["id"], creationTimestamp=now(), kind="compute#image", selfLink=f"{BASE}{PROJECT}/global/images/{name}")
        keep(images, scope, name, made)
        failed = lambda: made.update(status="FAILED") if settings["failed_stay"] else images.pop((scope, name), None)
        return begin(method, scope, made["selfLink"], made["id"], "insert", lambda: made.update(status="READY"), query.get("requestId"), failed)
    if action == "list":
        return page(images.values(), query, "compute#imageList")
    image = found(images, scope, path["image"], "images")
    if action == "get":
        return image
    if action == "delete":
        if path["image"].isdigit():
            raise missing(f"global/images/{path['image']}")
        if image["status"] == "PENDING":
            raise Refused(400, "resourceNotReady", f"The resource '{image['selfLink'].split('/v1/')[1]}' is not ready")
        return begin(method, scope, image["selfLink"], image["id"], "delete", lambda: remove(images, (scope, image["name"]), image),
                     query.get("requestId"))
    raise Refused(501, "notImplemented", method)


def perform(method, path, query, body):
    resource, action = method.split(".")
    scope = f"zones/{path['zone']}" if "zone" in path else f"regions/{path['region']}" if "region" in path else "global"
    request = (method, query.get("requestId"))
    if request[1] and request in answered:
        return answered[request]
    if method == "disks.aggregatedList":
        answer = page(disks.values(), query, "compute#diskAggregatedList")
        scopes = {f"zones/{zone}": {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}} for zone in ZONES}
        for disk in answer.pop("items"):
            place = scopes.setdefault("/".join(disk["selfLink"].split("/")[-4:-2]), {})
            place.pop("warning", None)
            place.setdefault("disks", []).append(shown(disk))
        answer["items"] = scopes
    elif resource in ("disks", "regionDisks"):
        answer = disks_(action, method, scope, path, query, body)
    elif resource == "instances":
        answer = instances_(action, method, scope, path, query, body)
    elif resource == "snapshots":
        answer = snapshots_(action, method, scope, path, query, body)
    elif resource == "images":
        answer = images_(action, method, scope, path, query, body)
    elif method == "zones.list":
        zones = [{"id": str(at + 1), "name": zone, "status": "UP", "region": f"{BASE}{PROJECT}/regions/{REGION}"}
                 for at, zone in enumerate(settings["zones"])]
        answer = page(zones + [{"id": "9", "name": "us-east1-b", "status": "UP", "region": f"{BASE}{PROJECT}/regions/us-east1"}], query, "compute#zoneList")
    elif action == "list":
        some = running if query.get("filter") == 'status != "DONE"' else operations
        answer = page([entry[4] for (place, _), entry in some.items() if place == scope], query, "compute#operationList")
    elif action == "get":
        if (scope, path["operation"]) not in operations:
            raise missing(f"{scope}/operations/{path['operation']}")
        answer = operations[(scope, path["operation"])][4]
    else:
        raise Refused(501, "notImplemented", method)
    if request[1]:
        answered[request] = answer
    return answer


# Public keys by their ids, what tokens were exchanged with, and what the metadata server was asked.
keys, exchanges, looked_up = {}, [], []


def new_key():
    """The file of a new key of the service account, whose other keys are deleted."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys.clear()
    kid = number()
    keys[kid] = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {"type": "service_account", "project_id": PROJECT, "private_key_id": kid, "private_key": private.decode(),
            "client_email": ACCOUNT, "token_uri": "https://oauth2.googleapis.com/token"}


def is_signed(token):
    """AIP-4111: "Self-signed JWT"."""
    try:
        claims = google.auth.jwt.decode(token, certs=keys)
    except (ValueError, google.auth.exceptions.GoogleAuthError):
        return False
    return claims["iss"] == claims["sub"] == ACCOUNT and COMPUTE in claims.get("scope", "").split() and "aud" not in claims \
        and claims["exp"] - claims["iat"] <= 3600


def exchanged(path, headers, body):
    """Security Token Service, and "generateAccessToken" of the Service Account Credentials API."""
    if path == "/v1/token":
        form = {key: values[0] for key, values in parse_qs(body).items()}
        exchanges.append(form)
        camel = {re.sub("_(.)", lambda match: match[1].upper(), key): value for key, value in form.items()}
        violations.extend(check({"$ref": "GoogleIdentityStsV1ExchangeTokenRequest"}, camel, "sts.token", True))
        wanted = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": POOL, "subject_token": SUBJECT,
                  "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
                  "subject_token_type": "urn:ietf:params:oauth:token-type:jwt"}
        if {key: form.get(key) for key in wanted} != wanted or form.get("scope") not in (COMPUTE, IAM):
            return 400, {"error": "invalid_grant", "error_description": f"not {SUBJECT}"}
        return 200, {"access_token": FEDERATED, "expires_in": 3599, "token_type": "Bearer",
                     "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
    body = json.loads(body)
    body = {key: value for key, value in body.items() if value is not None}
    exchanges.append(body)
    violations.extend(check({"$ref": "GenerateAccessTokenRequest"}, body, "generateAccessToken", True))
    if headers.get("authorization") != f"Bearer {FEDERATED}" or exchanges[-2]["scope"] != IAM or body["scope"] != [COMPUTE]:
        return 403, {"error": {"code": 403, "message": "Permission 'iam.serviceAccounts.getAccessToken' denied", "status": "PERMISSION_DENIED"}}
    return 200, {"accessToken": IMPERSONATED, "expireTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))}


def answer_to(verb, url, headers, body):
    token = headers.get("authorization", "").removeprefix("Bearer ")
    if token not in (TOKEN, FEDERATED, IMPERSONATED) and not is_signed(token):
        raise Refused(401, "authError", "Request had invalid authentication credentials.")
    target = next(((method, description, match) for known, pattern, method, description in routes
                   if known == verb and (match := pattern.fullmatch(url.path))), None)
    if target is None:
        violations.append(f"{verb} {url.path}: no such request")
        raise Refused(404, "notFound", "no such request")
    method, description, match = target
    path = {key: unquote(value) for key, value in match.groupdict().items()}
    query = {key: values[0] for key, values in parse_qs(url.query).items()}
    counts[method] = counts.get(method, 0) + 1
    known, wrong = {**description.get("parameters", {}), **DOCUMENT["parameters"]}, []
    for key, value in [*path.items(), *query.items()]:
        if key not in known:
            wrong.append(f"{method}: {key}: no such parameter")
        elif "pattern" in known[key] and not re.fullmatch(known[key]["pattern"], value):
            wrong.append(f"{method}: {key}: not as {known[key]['pattern']}: {value}")
    body = json.loads(body) if body else None
    if ("request" in description) != (body is not None):
        wrong.append(f"{method}: a body is missing, or there is one")
    elif body is not None:
        wrong += check(description["request"], body, method, True)
    if wrong:
        violations.extend(wrong)
        raise Refused(400, "invalid", "; ".join(wrong))
    if path["project"] != PROJECT:
        raise Refused(404, "notFound", f"The resource 'projects/{path['project']}' was not found")
    for right in ["compute." + right for right in rights_for(method, body or {})]:
        used.add(right)
        if settings["rights"] is not None and right not in settings["rights"]:
            raise Refused(403, "forbidden", f"Required '{right}' permission for 'projects/{PROJECT}'")
    rule = fault(method, ["refuse", "before", "after"])
    if rule and rule["kind"] == "refuse":
        raise Refused(rule["status"], rule["reason"], rule.get("message", "refused"))
    if rule and rule["kind"] == "before":
        raise Lost()
    answer = perform(method, path, query, body)
    violations.extend(f"answer of {wrong}" for wrong in check(description["response"], answer, method, False))
    if rule:
        raise Lost()
    return answer


METADATA = {"project/project-id": PROJECT, "instance/name": "n1", "instance/zone": f"projects/1/zones/{ZONES[0]}",
            "instance/machine-type": "projects/1/machineTypes/c4-standard-4",
            "instance/service-accounts/default/token": json.dumps({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one(self):
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        what = url.path.removeprefix("/computeMetadata/v1/")
        if what != url.path:
            looked_up.append(what)
            about = dict(METADATA, **{"instance/name": self.headers.get("x-machine", METADATA["instance/name"])})
            known = about.get(what) if self.headers.get("metadata-flavor") == "Google" else None
            return self.respond(200 if known else 404, known or "")
        with lock:
            pump()
            if url.path == "/v1/token" or url.path == f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken":
                status, answer = exchanged(url.path, self.headers, body)
                return self.respond(status, json.dumps(answer))
            if url.path == "/test":
                key, lean = None, False
                if body:
                    order = json.loads(body)
                    key = new_key() if order.pop("key", False) else None
                    lean = order.pop("lean", False)
                    faults.extend(order.pop("faults", []))
                    settings.update(order.pop("settings", {}))
                    for name, kind in order.pop("instances", {}).items():
                        zone, name = name.split("/")
                        instances[(f"zones/{zone}", name)] = {
                            "id": number(), "name": name, "status": "RUNNING", "machineType": f"{BASE}{PROJECT}/zones/{zone}/machineTypes/{kind}",
                            "disks": [{"deviceName": "boot", "source": f"{BASE}{PROJECT}/zones/{zone}/disks/boot-{name}", "boot": True}]}
                    for name, status in order.pop("status", {}).items():
                        zone, name = name.split("/")
                        instances[(f"zones/{zone}", name)]["status"] = status
                    if order.pop("forget", False):
                        faults.clear()
                    if order.pop("hurry", False):
                        for entry in running.values():
                            entry[0] = 0
                    for at in range(order.pop("crowd", 0)):
                        link = f"{BASE}{PROJECT}/zones/{ZONES[0]}/instances/m{at}"
                        attached = [{"deviceName": "longshore-" + disk["id"], "source": disk["selfLink"], "mode": "READ_ONLY"} for disk in disks.values()]
                        instances[(f"zones/{ZONES[0]}", f"m{at}")] = {"id": number(), "name": f"m{at}", "status": "RUNNING", "disks": attached}
                        for disk in disks.values():
                            disk["users"].append(link)
                    # Another program made them.
                    for one in [*disks.values(), *images.values()] if order.pop("disown", False) else []:
                        one["description"], one["labels"] = "of another program", {"owner": "someone"}
                    if order.pop("no_images", False):
                        images.clear()
                    change = order.pop("describe", None)
                    for disk in disks.values() if change else []:
                        disk["description"] = disk["description"].replace(change["from"], change["to"])
                return self.respond(200, json.dumps({
                    "disks": list(disks.values()), "snapshots": list(snapshots.values()), "images": list(images.values()), "instances": list(instances.values()),
                    "key": key, "exchanges": [] if lean else exchanges, "looked_up": looked_up, "violations": violations, "counts": counts,
                    "running": [entry[4] for entry in running.values()], "faults": faults, "used": sorted(used)}))
            try:
                status, answer = 200, answer_to(self.command, url, self.headers, body)
            except Refused as refused:
                status = refused.status
                answer = {"error": {"code": status, "message": refused.message,
                                    "errors": [{"message": refused.message, "domain": "global", "reason": refused.reason}]}}
            except Lost:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            text = json.dumps(answer)
        self.respond(status, text)

    def respond(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json; charset=UTF-8")
        self.send_header("metadata-flavor", "Google")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do_PATCH = handle_one


class Server(ThreadingHTTPServer):
    request_queue_size = 128


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
print(server.server_address[1], flush=True)
server.serve_forever()
