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

{{/* Of a pod. Call with (dict "root" . "component" "node"). */}}
{{- define "longshore.podLabels" -}}
{{- $own := include "longshore.labels" .root | fromYaml | merge (dict "app.kubernetes.io/component" .component) -}}
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
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "longshore.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The directory of the socket, on the node and, for the driver, in its container: the kubelet looks for it there. */}}
{{- define "longshore.pluginDir" -}}
{{ .Values.driver.kubeletDir }}/plugins/{{ .Values.driver.name }}
{{- end }}

{{/* What the backends need, each "true" or nothing. */}}
{{- define "longshore.hasNfs" -}}{{ range .Values.driver.backends }}{{ if eq .type "nfs" }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{- define "longshore.hasIscsi" -}}{{ range .Values.driver.backends }}{{ if eq .type "iscsi" }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{- define "longshore.hasEc2" -}}{{ range .Values.driver.backends }}{{ if eq .type "ec2" }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{/* Shares that the controller mounts for itself. */}}
{{- define "longshore.hasShares" -}}{{ range .Values.driver.backends }}{{ if and (eq .type "nfs") .shares }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{/* Whether the controller is a target server, whose pools the kernel exports. */}}
{{- define "longshore.exports" -}}{{ range .Values.driver.backends }}{{ if and (eq .type "iscsi") .pools }}true{{ break }}{{ end }}{{ end }}{{- end }}
{{/* Whether the controller needs root and the machine's network: for a share or for the kernel's target. */}}
{{- define "longshore.controllerIsRoot" -}}{{ if or (include "longshore.hasShares" .) (include "longshore.exports" .) }}true{{ end }}{{- end }}
{{/* Whether the node's pod is in the node's network: NFS mounts and iSCSI sessions outlive the pod, and a pod's own network does not;
     EC2's instance metadata answers one hop away only. */}}
{{- define "longshore.nodeNetwork" -}}{{ if or (include "longshore.hasNfs" .) (include "longshore.hasIscsi" .) (include "longshore.hasEc2" .) }}true{{ end }}{{- end }}

{{/* The directories that hold pools and are not below the state directory, one a line. The parent is mounted, not the pool itself: what
     is mounted on it later shows, and a disk that is away is not mistaken for an empty pool. Those of a target server are on no
     node. Call with (dict "root" . "types" (list "image")). */}}
{{- define "longshore.poolParents" -}}
{{- $parents := dict -}}
{{- range .root.Values.driver.backends -}}
{{- if has .type $.types -}}
{{- range .pools -}}
{{- if not (hasPrefix (printf "%s/" $.root.Values.driver.stateDir) .path) -}}
{{- $_ := set $parents (dir .path) true -}}
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
/etc/longshore/{{ if include "longshore.exports" . }}node{{ else }}longshore{{ end }}.yaml
{{- end }}

{{/* Where health is served. Who is in the node's network is asked at its loopback, which nobody else reaches. Call with
     (dict "root" . "host" "true"), host being empty for a pod with a network of its own. */}}
{{- define "longshore.httpAddress" -}}
{{- .root.Values.driver.http.address | default (.host | ternary "127.0.0.1" "[::]") -}}
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
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: http{{ $at }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http{{ $at }}}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: 2
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

{{/* Call with (dict "root" . "sidecar" .Values.sidecars.resizer "name" "csi-resizer" "security" "longshore.nodeSidecarSecurity"
     "flags" (list ...) "env" (list of templates' texts)). */}}
{{- define "longshore.sidecar" -}}
- name: {{ .name }}
  image: {{ .sidecar.image }}
  imagePullPolicy: {{ .root.Values.sidecars.pullPolicy }}
  args:
    - --v={{ .root.Values.sidecars.verbosity }}
    - --csi-address=/csi/csi.sock
    {{- range concat .flags .sidecar.extraArgs }}
    - {{ . }}
    {{- end }}
  {{- with .env }}
  env:
    {{- range $name, $field := . }}
    - name: {{ $name }}
      valueFrom: {fieldRef: {fieldPath: {{ $field }}}}
    {{- end }}
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
