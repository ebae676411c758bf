{{- /* The containers of a pod: one pulls a build, and the other serves. */}}

{{- /* What a container may do beyond an ordinary user: nothing. */}}
{{- define "trtspec.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end }}

{{- define "trtspec.enginesFolder" -}}
/engines/{{ .Values.engines.platform }}/{{ .Values.digest }}
{{- end }}

{{- /* Models of one's own are where the recipe says that they are. */}}
{{- define "trtspec.modelsFolder" -}}
{{ ternary .Values.volume.path "/models" (eq .Values.volume.kind "host_path") }}
{{- end }}

{{- define "trtspec.pullContainer" -}}
name: pull
image: {{ .Values.image | quote }}
imagePullPolicy: IfNotPresent
args:
  {{- $folder := include "trtspec.enginesFolder" . }}
  {{- list "trtspec" "store" "pull" .Values.engines.store .Values.digest "--output" $folder "--reuse" | toYaml | nindent 2 }}
env:
  - name: HOME
    value: /tmp
{{- with .Values.engines.storeSecret }}
envFrom:
  - secretRef:
      name: {{ . | quote }}
{{- end }}
resources:
  requests:
    cpu: "1"
    memory: 2Gi
  limits:
    memory: 2Gi
securityContext:
  {{- include "trtspec.containerSecurity" . | nindent 2 }}
volumeMounts:
  - name: engines
    mountPath: /engines
  - name: temporary
    mountPath: /tmp
{{- end }}

{{- /* Takes a list: the chart's own context, the container's name, and arguments in place of its own, or null. */}}
{{- define "trtspec.serverContainer" -}}
{{- $ := index . 0 }}
{{- $arguments := index . 2 | default (include "trtspec.arguments" $ | fromYamlArray) }}
name: {{ index . 1 }}
image: {{ $.Values.image | quote }}
imagePullPolicy: IfNotPresent
{{- with $.Values.server }}
command:
  {{- .command | toYaml | nindent 2 }}
{{- end }}
args:
  {{- concat $arguments $.Values.extraArgs | toYaml | nindent 2 }}
env:
  {{- include "trtspec.environment" $ | nindent 2 }}
{{- if and $.Values.server $.Values.server.hubSecret }}
envFrom:
  - secretRef:
      name: {{ $.Values.server.hubSecret | quote }}
{{- end }}
resources:
  {{- include "trtspec.resources" $ | nindent 2 }}
securityContext:
  {{- include "trtspec.containerSecurity" $ | nindent 2 }}
volumeMounts:
  {{- include "trtspec.volumeMounts" $ | nindent 2 }}
{{- end }}

{{- /* What of a server that takes requests is asked, and told before it ends. */}}
{{- define "trtspec.served" -}}
ports:
  {{- if .Values.engines }}
  - name: http
    containerPort: 8000
  - name: grpc
    containerPort: 8001
  - name: metrics
    containerPort: 8002
  {{- end }}
  - name: openai
    containerPort: 9000
startupProbe:
  httpGet:
    path: {{ ternary "/v2/health/ready" "/health" (not (empty .Values.engines)) }}
    port: {{ ternary "http" "openai" (not (empty .Values.engines)) }}
  periodSeconds: 5
  failureThreshold: {{ int64 .Values.times.startupFailures }}
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /health
    port: openai
  periodSeconds: 5
  # A busy server of another engine answers from what its model has said in the last seconds.
  failureThreshold: {{ ternary 1 3 (not (empty .Values.engines)) }}
  timeoutSeconds: 5
livenessProbe:
  httpGet:
    path: {{ ternary "/v2/health/live" "/health" (not (empty .Values.engines)) }}
    port: {{ ternary "http" "openai" (not (empty .Values.engines)) }}
  periodSeconds: 10
  # SGLang waits 20 seconds for a token before it says that it has died.
  failureThreshold: {{ ternary 3 6 (not (empty .Values.engines)) }}
  timeoutSeconds: {{ ternary 5 25 (not (empty .Values.engines)) }}
lifecycle:
  preStop:
    # Until then nobody may have heard that the pod is to end.
    sleep:
      seconds: 10
{{- end }}

{{- define "trtspec.arguments" -}}
{{- if .Values.engines }}
{{- $folder := include "trtspec.enginesFolder" . }}
{{- $grace := int64 .Values.times.graceSeconds | toString }}
{{- $deploy := list "trtspec" "deploy" "/etc/trtspec/recipe/recipe.yaml" "--output" $folder "--host" "0.0.0.0" }}
{{- $own := list "--grace" $grace "--log-format" "json" "--log-to" "stdout" }}
{{- $keys := ternary (list "--api-keys" "/etc/trtspec/api-keys/keys") list (not (empty .Values.apiKeysSecret)) }}
{{- concat $deploy $own $keys | toYaml }}
{{- else }}
{{- .Values.server.arguments | toYaml }}
{{- end }}
{{- end }}

{{- define "trtspec.environment" -}}
- name: HOME
  value: /tmp
{{- if .Values.engines }}
- name: TRTSPEC_ROLLOUT
  value: /etc/trtspec/rollout/rollout.json
# NVIDIA's C++ backend takes room for caches that go to other servers, and none do.
- name: TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE
  value: 0B
{{- else }}
- name: USER
  value: trtspec
- name: HF_HOME
  value: {{ printf "%s/huggingface" (ternary (include "trtspec.modelsFolder" .) "/tmp" .Values.server.hub) | quote }}
{{- range .Values.server.environment }}
- name: {{ .name | quote }}
  value: {{ .value | quote }}
{{- end }}
{{- if and .Values.apiKeysSecret .Values.server.keyVariable }}
- name: {{ .Values.server.keyVariable | quote }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.apiKeysSecret | quote }}
      key: keys
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* GPUs and memory are not shared, so that all that is asked for is the limit. */}}
{{- define "trtspec.resources" -}}
requests:
  cpu: {{ .Values.resources.cpu | quote }}
  memory: {{ .Values.resources.memory | quote }}
  ephemeral-storage: {{ .Values.resources.disk | quote }}
  {{- with .Values.gpu }}
  nvidia.com/gpu: {{ int64 .count }}
  {{- end }}
limits:
  {{- with .Values.resources.cpuLimit }}
  cpu: {{ . | quote }}
  {{- end }}
  memory: {{ .Values.resources.memory | quote }}
  {{- with .Values.gpu }}
  nvidia.com/gpu: {{ int64 .count }}
  {{- end }}
{{- end }}

{{- define "trtspec.volumeMounts" -}}
{{- if .Values.engines }}
- name: engines
  mountPath: /engines
  readOnly: true
- name: recipe
  mountPath: /etc/trtspec/recipe
  readOnly: true
- name: rollout
  mountPath: /etc/trtspec/rollout
  readOnly: true
{{- if .Values.apiKeysSecret }}
- name: api-keys
  mountPath: /etc/trtspec/api-keys
  readOnly: true
{{- end }}
{{- else }}
- name: models
  mountPath: {{ include "trtspec.modelsFolder" . | quote }}
  {{- if not .Values.server.hub }}
  readOnly: true
  {{- end }}
{{- if .Values.server.files }}
- name: launch
  mountPath: /etc/trtspec/launch
  readOnly: true
{{- end }}
{{- end }}
- name: temporary
  mountPath: /tmp
- name: shared-memory
  mountPath: /dev/shm
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
