{{/* Names. One release a cluster and driver name: what is not in a namespace carries the release's name. */}}
{{- define "longshore.name" -}}
{{- if .Values.fullnameOverride -}}{{ .Values.fullnameOverride }}{{- else if contains "longshore" .Release.Name -}}{{ .Release.Name | trunc 48 | trimSuffix "-" }}{{- else -}}{{ printf "%s-longshore" .Release.Name | trunc 48 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "longshore.labels" -}}
app.kubernetes.io/name: longshore
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The chart as a kind of node has it, its settings in place of the others', which is put into a dict. Call with
     (dict "root" $ "kind" (of node.kinds, or empty) "into" $dict). */}}
{{- define "longshore.ofKind" -}}
{{- $values := deepCopy .root.Values -}}
{{- range $key, $value := omit .kind "name" "backends" -}}{{- $_ := set $values.node $key $value -}}{{- end -}}
{{- with .kind.backends -}}{{- $_ := set $values.driver "backends" . -}}{{- end -}}
{{- $_ := merge .into (dict "Values" $values "kind" .kind.name) (omit .root "Values") -}}
{{- end }}

{{/* Whether the snapshot sidecar and its classes are made: csi-snapshotter ends where the cluster has no such API, and an object of it
     fails the installation. Where no cluster can be asked (helm template), it is taken to have it. */}}
{{- define "longshore.snapshots" -}}
{{- if .Values.snapshots.enabled -}}
{{- if or (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1") (not (lookup "v1" "Namespace" "" "kube-system")) -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether there are CSIStorageCapacity objects. Of a driver whose volumes are on no node csi-provisioner deletes each that it makes: what it
     asked for selects nodes by no label, what the API server returns has no labels, and it takes the one for another than the other
     (WorkItem.equals of external-provisioner 6.3.0). Pods that wait for them would never be scheduled. */}}
{{- define "longshore.storageCapacity" -}}{{ if and (eq .Values.deployment "local") .Values.csiDriver.storageCapacity }}true{{ end }}{{- end }}

{{/* Whether the kubelet gives SELinux contexts as mount options: a bound directory cannot have one, and NodePublishVolume refuses it. */}}
{{- define "longshore.seLinuxMount" -}}
{{- $mount := .Values.csiDriver.seLinuxMount -}}
{{- range .Values.driver.backends }}{{ if eq .type "directory" }}{{ $mount = false }}{{ end }}{{ end -}}
{{- $mount -}}
{{- end }}

{{/* The component of a node's pod: what tells the DaemonSets of kinds of nodes apart. */}}
{{- define "longshore.nodeComponent" -}}node{{ with .kind }}-{{ . }}{{ end }}{{- end }}

{{/* The nodes of a kind have its label, all others have none of the kinds'; added to each of the terms, of which one is enough. */}}
{{- define "longshore.nodeAffinity" -}}
{{- $affinity := deepCopy .Values.node.affinity -}}
{{- if .Values.node.kinds -}}
{{- $names := list -}}{{- range .Values.node.kinds -}}{{- $names = append $names .name -}}{{- end -}}
{{- $own := dict "key" .Values.node.kindLabel "operator" (.kind | empty | ternary "NotIn" "In") "values" (.kind | empty | ternary $names (list .kind)) -}}
{{- $nodes := $affinity.nodeAffinity | default dict -}}
{{- $required := $nodes.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list dict) -}}
{{- $terms = append $terms (set . "matchExpressions" (append (.matchExpressions | default list) $own)) -}}
{{- end -}}
{{- $_ := set $nodes "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $nodes -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end }}

{{/* Of a pod. Call with (dict "root" . "component" "node"). */}}
{{- define "longshore.podLabels" -}}
{{- $component := eq .component "node" | ternary (include "longshore.nodeComponent" .root) .component -}}
{{- $own := include "longshore.labels" .root | fromYaml | merge (dict "app.kubernetes.io/component" $component) -}}
{{- merge (dict) (get .root.Values .component).podLabels $own | toYaml -}}
{{- end }}

{{/* The name of a pod's service account. Call with (dict "root" . "component" "node"). */}}
{{- define "longshore.account" -}}
{{- (get .root.Values .component).serviceAccount.name | default (printf "%s-%s" (include "longshore.name" .root) .component) -}}
{{- end }}

{{/* Call with (dict "root" . "component" "node"). */}}
{{- define "longshore.selector" -}}
app.kubernetes.io/name: longshore
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ eq .component "node" | ternary (include "longshore.nodeComponent" .root) .component }}
{{- end }}

{{- define "longshore.image" -}}
{{- $image := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- include "longshore.pulled" (dict "root" . "image" (.Values.image.digest | empty | ternary $image .Values.image.repository) "digest" .Values.image.digest) -}}
{{- end }}

{{/* An image as it is pulled: from imageRegistry, if there is one, and by its digest, if it has one. Call with
     (dict "root" . "image" "registry/name:tag" "digest" ""). What is before the first slash is a registry where it has a dot or a port. */}}
{{- define "longshore.pulled" -}}
{{- $image := .image -}}
{{- with .root.Values.imageRegistry -}}
{{- $image = printf "%s/%s" . (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $image "") -}}
{{- end -}}
{{- $image }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The directory of the socket, on the node and, for the driver, in its container: the kubelet looks for it there. */}}
{{- define "longshore.pluginDir" -}}
{{ .Values.driver.kubeletDir }}/plugins/{{ .Values.driver.name }}
{{- end }}

{{/* What the backends need, each "true" or nothing. */}}
{{- define "longshore.hasNfs" -}}{{ range .Values.driver.backends }}{{ if eq .type "nfs" }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{- define "longshore.hasIscsi" -}}{{ range .Values.driver.backends }}{{ if eq .type "iscsi" }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{- define "longshore.hasLvm" -}}{{ range .Values.driver.backends }}{{ if eq .type "lvm" }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{- define "longshore.hasIoLimits" -}}{{ range .Values.driver.backends }}{{ if .ioLimits }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{- define "longshore.hasCloud" -}}{{ range .Values.driver.backends }}{{ if has .type (list "ec2" "gce" "azure" "cinder") }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{/* Shares that the controller mounts for itself. */}}
{{- define "longshore.hasShares" -}}{{ range .Values.driver.backends }}{{ if and (eq .type "nfs") .shares }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{/* Whether the controller is a target server, whose pools the kernel exports. */}}
{{- define "longshore.exports" -}}{{ range .Values.driver.backends }}{{ if and (eq .type "iscsi") .pools }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{/* Whether the controller needs root and the machine's network: for a share or for the kernel's target. */}}
{{- define "longshore.controllerIsRoot" -}}{{ if or (include "longshore.hasShares" .) (include "longshore.exports" .) }}true{{ end }}{{- end }}
{{/* Whether the node's pod is in the node's network: NFS mounts and iSCSI sessions outlive the pod, and a pod's own network does not;
     a cloud's metadata service answers the node: EC2's one hop away only, and others are shut off from pods, or tell them less. */}}
{{- define "longshore.nodeNetwork" -}}{{ if or (include "longshore.hasNfs" .) (include "longshore.hasIscsi" .) (include "longshore.hasCloud" .) }}true{{ end }}{{- end }}

{{/* The directories that hold pools and base directories and are not below the state directory, one a line. The parent is mounted, not the
     pool itself: what is mounted on it later shows, and a disk that is away is not mistaken for an empty pool. Below a static path lies
     what is there already, so it is mounted itself. Those of a target server are on no node. Call with (dict "root" . "types" (list "image")). */}}
{{- define "longshore.poolParents" -}}
{{- $parents := dict -}}
{{- range .root.Values.driver.backends -}}
{{- if has .type $.types -}}
{{- range .pools -}}
{{- if not (hasPrefix (printf "%s/" $.root.Values.driver.stateDir) .path) -}}
{{- $_ := set $parents (dir .path) true -}}
{{- end -}}
{{- end -}}
{{- if eq .type "directory" -}}
{{- if not (hasPrefix (printf "%s/" $.root.Values.driver.stateDir) .path) -}}
{{- $_ := set $parents (dir .path) true -}}
{{- end -}}
{{- range .staticPaths -}}
{{- $_ := set $parents . true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- keys $parents | sortAlpha | join "\n" -}}
{{- end }}

{{/* The exported directories on which the controller enforces capacities, one a line: it runs on their server. */}}
{{- define "longshore.quotas" -}}
{{- $directories := dict -}}
{{- range .Values.driver.backends -}}
{{- range .shares -}}
{{- with .quota }}{{ $_ := set $directories . true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- keys $directories | sortAlpha | join "\n" -}}
{{- end }}

{{/* The node's file is another one where there is a target server: its pools and its portals are none of the nodes'. */}}
{{- define "longshore.nodeConfig" -}}
/etc/longshore/{{ if .kind }}{{ include "longshore.nodeComponent" . }}{{ else if include "longshore.exports" . }}node{{ else }}longshore{{ end }}.yaml
{{- end }}

{{- define "longshore.configFile" -}}
driverName: {{ .root.Values.driver.name }}
stateDir: {{ .root.Values.driver.stateDir }}
kubeletDir: {{ .root.Values.driver.kubeletDir }}
inlineMaxSize: {{ .root.Values.driver.inlineMaxSize }}
allowInlineParameters: {{ toJson .root.Values.driver.allowInlineParameters }}
log:
  {{- toYaml .root.Values.driver.log | nindent 2 }}
backends:
  {{- toYaml .backends | nindent 2 }}
{{- end }}

{{/* Of the nodes: what is the target server's is left out. */}}
{{- define "longshore.nodeConfigFile" -}}
{{- $backends := list -}}
{{- range .Values.driver.backends -}}
{{- $backends = append $backends (eq .type "iscsi" | ternary (omit . "pools" "portals" "chap" "volumesPerNode" "nodes") .) -}}
{{- end -}}
{{- include "longshore.configFile" (dict "root" . "backends" $backends) -}}
{{- end }}

{{/* Where health is served. Who is in the node's network is asked at its loopback, which nobody else reaches. Call with
     (dict "root" . "host" "true"), host being empty for a pod with a network of its own. */}}
{{- define "longshore.httpAddress" -}}
{{- .root.Values.driver.http.address | default (.host | ternary "127.0.0.1" "[::]") -}}
{{- end }}

{{/* Where another container of the pod asks for it: all addresses are none to connect to. Call as httpAddress. */}}
{{- define "longshore.httpLocal" -}}
{{- $address := include "longshore.httpAddress" . -}}
{{- has $address (list "[::]" "0.0.0.0") | ternary "127.0.0.1" $address -}}
{{- end }}

{{/* Call with (dict "root" . "config" "/etc/longshore/longshore.yaml" "host" "true" "port" 9809 "metricsPort" 9808). */}}
{{- define "longshore.driverFlags" -}}
- --config={{ .config }}
- --grace={{ .root.Values.driver.grace }}s
- --http-endpoint={{ include "longshore.httpAddress" . }}:{{ .port }}
- --metrics-endpoint={{ if .root.Values.driver.metrics.enabled }}{{ .root.Values.driver.metrics.address | default "[::]" }}:{{ .metricsPort }}{{ else }}off{{ end }}
{{- with .root.Values.driver.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- if .root.Values.driver.otlpInsecure }}
- --otlp-insecure
{{- end }}
{{- end }}

{{- define "longshore.nodeName" -}}
- name: KUBE_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}

{{/* Whether the end of a node's driver waits for its volumes. */}}
{{- define "longshore.preStop" -}}{{ if and .Values.node.preStop.enabled .Values.csiDriver.attachRequired }}true{{ end }}{{- end }}

{{/* The token of the pod's service account, for those of its containers that speak to the API server; the pod gives it to none by itself. */}}
{{- define "longshore.tokenMount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- define "longshore.tokenVolume" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* What `longshore inspect`, `doctor` and `call` read in this container. Call with (dict "endpoint" ... "config" ... "mode" ...). */}}
{{- define "longshore.place" -}}
- {name: CSI_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: LONGSHORE_CONFIG, value: {{ .config | quote }}}
- {name: LONGSHORE_MODE, value: {{ .mode | quote }}}
{{- end }}

{{/* /healthz says whether the process answers, /readyz whether its storage and the kubelet do. Call as driverFlags. */}}
{{- define "longshore.probes" -}}
{{- $address := include "longshore.httpAddress" . | trimAll "[]" -}}
{{- $at := has $address (list "127.0.0.1" "::1") | ternary (printf ", host: %q" $address) "" -}}
ports:
  - {name: http, containerPort: {{ .port }}, protocol: TCP}
  {{- if .root.Values.driver.metrics.enabled }}
  - {name: metrics, containerPort: {{ .metricsPort }}, protocol: TCP}
  {{- end }}
startupProbe:
  httpGet: {path: /healthz, port: http{{ $at }}}
  # Starting takes milliseconds, and some seconds where storage does not answer.
  {{- toYaml .root.Values.driver.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: http{{ $at }}}
  {{- toYaml .root.Values.driver.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: http{{ $at }}}
  {{- toYaml .root.Values.driver.probes.readiness | nindent 2 }}
{{- end }}

{{/* A sidecar of a node's pod: root, since the socket is root's and nobody else's, and nothing besides. */}}
{{- define "longshore.nodeSidecarSecurity" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- if .Values.sidecars.seLinux }}
seLinuxOptions: {type: spc_t}
{{- end }}
{{- end }}

{{/* The controller's pod: no root, no capabilities, nothing writable but its directories. */}}
{{- define "longshore.controllerSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.controller.runAsUser }}
runAsGroup: {{ .Values.controller.runAsGroup }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The driver in a controller's pod that mounts shares or exports pools: root, with what that needs (docs/security.md). The runtimes'
     AppArmor profile forbids all mounts and all of /sys/kernel, whatever the capabilities. */}}
{{- define "longshore.rootControllerSecurity" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [{{ if include "longshore.hasShares" . }}CHOWN, DAC_OVERRIDE, FOWNER, FSETID, MKNOD, SETFCAP, {{ end }}SYS_ADMIN]
seccompProfile: {type: RuntimeDefault}
appArmorProfile: {type: Unconfined}
{{- if .Values.sidecars.seLinux }}
seLinuxOptions: {type: spc_t}
{{- end }}
{{- end }}

{{/* Variables of the driver besides the chart's own: a proxy, AWS's files and certificates, and the operator's. Call with
     (dict "root" . "component" "controller"). */}}
{{- define "longshore.driverEnv" -}}
{{- $own := get .root.Values .component -}}
{{- with .root.Values.proxy }}
{{- with .https }}
- {name: HTTPS_PROXY, value: {{ . | quote }}}
{{- end }}
{{- with .http }}
- {name: HTTP_PROXY, value: {{ . | quote }}}
{{- end }}
{{- with .noProxy }}
- {name: NO_PROXY, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- if and (eq .component "controller") .root.Values.caCertificates.name }}
- {name: SSL_CERT_FILE, value: /etc/longshore-ca/{{ .root.Values.caCertificates.key }}}
# Besides the image's own.
- {name: SSL_CERT_DIR, value: /etc/ssl/certs}
{{- end }}
{{- if and (eq .component "controller") .root.Values.aws.secretName }}
- {name: AWS_CONFIG_FILE, value: /etc/longshore-aws/config}
- {name: AWS_SHARED_CREDENTIALS_FILE, value: /etc/longshore-aws/credentials}
{{- with .root.Values.aws.profile }}
- {name: AWS_PROFILE, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- with $own.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of a kind of sidecar, whether it shows metrics. */}}
{{- define "longshore.sidecarPort" -}}{{ if and .root.Values.sidecars.metrics.enabled .sidecar.httpPort }}{{ .sidecar.httpPort }}{{ end }}{{- end }}

{{/* Call with (dict "root" . "sidecar" .Values.sidecars.resizer "name" "csi-resizer" "security" "longshore.nodeSidecarSecurity"
     "flags" (list ...) "env" (list of templates' texts)). A flag that this sidecar's values say stands in place of the chart's. */}}
{{- define "longshore.sidecar" -}}
{{- $own := list -}}
{{- $sidecar := .sidecar -}}
{{- range $value, $flag := dict "workers" (eq .name "csi-resizer" | ternary "workers" "worker-threads") "kubeAPIQPS" "kube-api-qps" "kubeAPIBurst" "kube-api-burst" "kubeAPICapacityQPS" "kube-api-capacity-qps" "kubeAPICapacityBurst" "kube-api-capacity-burst" "timeout" "timeout" -}}
{{- if hasKey $sidecar $value -}}{{- $own = append $own (printf "--%s=%v" $flag (get $sidecar $value)) -}}{{- end -}}
{{- end -}}
{{- $port := include "longshore.sidecarPort" . -}}
{{- if $port -}}{{- $own = append $own (printf "--http-endpoint=:%s" $port) -}}{{- end -}}
{{- $said := list -}}
{{- range $own -}}{{- $said = append $said (splitList "=" . | first) -}}{{- end -}}
- name: {{ .name }}
  image: {{ include "longshore.pulled" (dict "root" .root "image" .sidecar.image "digest" .sidecar.digest) }}
  imagePullPolicy: {{ .root.Values.sidecars.pullPolicy }}
  args:
    - --v={{ hasKey .sidecar "verbosity" | ternary .sidecar.verbosity .root.Values.sidecars.verbosity }}
    - --csi-address=/csi/csi.sock
    {{- range .flags }}
    {{- if not (has (splitList "=" . | first) $said) }}
    - {{ . }}
    {{- end }}
    {{- end }}
    {{- range concat $own .sidecar.extraArgs }}
    - {{ . }}
    {{- end }}
  {{- if or .env .sidecar.env }}
  env:
    {{- range $name, $field := .env }}
    - name: {{ $name }}
      valueFrom: {fieldRef: {fieldPath: {{ $field }}}}
    {{- end }}
    {{- with .sidecar.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- if $port }}
  ports:
    - {name: {{ include "longshore.sidecarPortName" .name }}, containerPort: {{ $port }}, protocol: TCP}
  {{- end }}
  securityContext:
    {{- include .security .root | nindent 4 }}
  resources:
    {{- toYaml .sidecar.resources | nindent 4 }}
  volumeMounts:
    - {name: socket, mountPath: /csi}
    {{- if ne .name "node-driver-registrar" }}
    {{- include "longshore.tokenMount" . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* csi-provisioner -> m-provisioner: a port's name has at most 15 characters. */}}
{{- define "longshore.sidecarPortName" -}}{{ printf "m-%s" (trimPrefix "csi-" .) }}{{- end }}

{{/* The ports at which the pods show metrics, one name a line. */}}
{{- define "longshore.metricsPorts" -}}
{{- if .Values.driver.metrics.enabled }}metrics
{{ end }}
{{- if and .Values.sidecars.metrics.enabled (ne .Values.deployment "nodes") }}
{{- range $name := list "provisioner" "attacher" "resizer" "snapshotter" }}
{{- $runs := or (has $name (list "provisioner" "resizer")) (and (eq $name "attacher") $.Values.csiDriver.attachRequired) (and (eq $name "snapshotter") (include "longshore.snapshots" $)) }}
{{- if and $runs (get $.Values.sidecars $name).httpPort }}{{ include "longshore.sidecarPortName" $name }}
{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where the controller's pods run, and what runs before them. */}}
{{- define "longshore.controllerPlacement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.controller.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.controller.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.controller.affinity }}
affinity:
  {{- toYaml .Values.controller.affinity | nindent 2 }}
{{- else if gt (int .Values.controller.replicas) 1 }}
# The second is there for when the first one's node is not.
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "longshore.selector" (dict "root" . "component" "controller") | nindent 14 }}
{{- end }}
{{- with .Values.controller.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.controller.initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "longshore.controllerDisruptionBudget" }}
{{- if .Values.controller.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ printf "%s-controller" (include "longshore.name" .) }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "longshore.labels" . | nindent 4 }}
    app.kubernetes.io/component: controller
spec:
  maxUnavailable: {{ .Values.controller.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "longshore.selector" (dict "root" . "component" "controller") | nindent 6 }}
{{- end }}
{{- end }}

{{/* Flags of each sidecar beside a controller, of which there may be several; a JSON list. */}}
{{- define "longshore.electionFlags" -}}
{{- $common := list "--leader-election" "--leader-election-namespace=$(NAMESPACE)" -}}
{{- $common = concat $common (list (printf "--kube-api-qps=%v" .Values.sidecars.kubeAPIQPS) (printf "--kube-api-burst=%v" .Values.sidecars.kubeAPIBurst)) -}}
{{- range $value, $flag := dict "leaseDuration" "lease-duration" "renewDeadline" "renew-deadline" "retryPeriod" "retry-period" -}}
{{- with get $.Values.sidecars.leaderElection $value -}}{{- $common = append $common (printf "--leader-election-%s=%s" $flag .) -}}{{- end -}}
{{- end -}}
{{- toJson $common -}}
{{- end }}

{{/* Flags of csi-resizer; a JSON list. */}}
{{- define "longshore.resizerFlags" -}}
{{- list "--timeout=60s" "--resize-timeout=60s" "--modify-timeout=60s" "--handle-volume-inuse-error=false" (printf "--workers=%v" .Values.sidecars.workers) | toJson -}}
{{- end }}
