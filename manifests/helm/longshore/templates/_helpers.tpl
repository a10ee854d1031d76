{{/* Names. One release a cluster and driver name: what is not in a namespace carries the release's name. */}}
{{- define "longshore.name" -}}
{{- if contains "longshore" .Release.Name -}}{{ .Release.Name | trunc 48 | trimSuffix "-" }}{{- else -}}{{ printf "%s-longshore" .Release.Name | trunc 48 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "longshore.labels" -}}
app.kubernetes.io/name: longshore
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Call with (dict "root" . "component" "node"). */}}
{{- define "longshore.selector" -}}
app.kubernetes.io/name: longshore
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "longshore.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The folder of the socket, on the node and, for the driver, in its container: the kubelet looks for it there. */}}
{{- define "longshore.pluginDir" -}}
{{ .Values.driver.kubeletDir }}/plugins/{{ .Values.driver.name }}
{{- end }}

{{/* The folders that hold pools and are not below the state folder, one a line. The parent is mounted, not the pool itself: what
     is mounted on it later shows, and a disk that is away is not mistaken for an empty pool. */}}
{{- define "longshore.poolParents" -}}
{{- $parents := dict -}}
{{- range .Values.driver.backends -}}
{{- range .pools -}}
{{- if not (hasPrefix (printf "%s/" $.Values.driver.stateDir) .path) -}}
{{- $_ := set $parents (dir .path) true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- keys $parents | sortAlpha | join "\n" -}}
{{- end }}

{{- define "longshore.driverFlags" -}}
- --config=/etc/longshore/longshore.yaml
- --grace={{ .Values.driver.grace }}s
- --http-endpoint={{ .Values.driver.http.address }}:{{ .Values.driver.http.port }}
{{- with .Values.driver.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- end }}

{{- define "longshore.nodeName" -}}
- name: KUBE_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}

{{/* /healthz says whether the process answers, /readyz whether its storage and the kubelet do. */}}
{{- define "longshore.probes" -}}
ports:
  - {name: http, containerPort: {{ .Values.driver.http.port }}, protocol: TCP}
startupProbe:
  httpGet: {path: /healthz, port: http}
  # Starting takes milliseconds, and longer where an earlier process left work to be finished first.
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
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

{{/* The controller's pod: no root, no capabilities, nothing writable but its folders. */}}
{{- define "longshore.controllerSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.controller.runAsUser }}
runAsGroup: {{ .Values.controller.runAsGroup }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
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
    {{- range .flags }}
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
{{- end }}
