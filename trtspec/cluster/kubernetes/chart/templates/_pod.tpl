{{- /* The pod of a server: who it is, where it may run, and its volumes. */}}

{{- define "trtspec.podLabels" -}}
{{- include "trtspec.labelsWith" (list . (dict "trtspec/track" "stable")) }}
{{- end }}

{{- define "trtspec.podAnnotations" -}}
{{- mergeOverwrite (dict) .Values.annotations .Values.podAnnotations (dict "trtspec/digest" .Values.digest) | toYaml }}
{{- end }}

{{- /* All of a pod's spec but its containers and what a ServingRuntime of KServe has. */}}
{{- define "trtspec.podIdentity" -}}
serviceAccountName: {{ include "trtspec.serviceAccount" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
# The sleep before SIGTERM, the time of the requests, and 20 seconds for the server's own end.
terminationGracePeriodSeconds: {{ add .Values.times.graceSeconds 30 }}
securityContext:
  # NVIDIA's image of Triton has this user.
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "trtspec.selector" . | nindent 8 }}
{{- with .Values.runtimeClass }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.priorityClass }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "trtspec.podPlace" -}}
volumes:
  {{- include "trtspec.volumes" . | nindent 2 }}
affinity:
  {{- mergeOverwrite (include "trtspec.affinity" . | fromYaml) .Values.affinity | toYaml | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.gpu .Values.tolerations }}
tolerations:
  {{- range concat (ternary (list "nvidia.com/gpu") list (not (empty .Values.gpu))) .Values.tolerations }}
  - key: {{ . | quote }}
    operator: Exists
  {{- end }}
{{- end }}
{{- end }}

{{- /* Nodes with the GPUs that the engines were built for, and other hosts for other servers. */}}
{{- define "trtspec.affinity" -}}
{{- $labels := list }}
{{- if kindIs "map" .Values.gpuLabels }}
{{- range $key, $value := .Values.gpuLabels }}
{{- $labels = append $labels (list $key $value) }}
{{- end }}
{{- else if and .Values.gpu (not (kindIs "bool" .Values.gpuLabels)) }}
{{- /* Those of NVIDIA's GPU feature discovery. */}}
{{- $product := list "nvidia.com/gpu.product" .Values.gpu.product }}
{{- $labels = list $product (list "nvidia.com/gpu.compute.major" .Values.gpu.computeMajor) }}
{{- end }}
{{- if and .Values.gpu $labels }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          {{- range $labels }}
          - key: {{ index . 0 | quote }}
            operator: In
            values:
              - {{ index . 1 | quote }}
          {{- end }}
{{- end }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        labelSelector:
          matchLabels:
            {{- include "trtspec.selector" . | nindent 12 }}
        topologyKey: kubernetes.io/hostname
{{- end }}

{{- define "trtspec.volumes" -}}
{{- $kept := include "trtspec.kept" . }}
- name: {{ $kept }}
  {{- if eq .Values.volume.kind "host_path" }}
  hostPath:
    path: {{ .Values.volume.path | quote }}
    # Were it made by the kubelet, it would belong to root, and nobody here is.
    type: Directory
  {{- else if eq .Values.volume.kind "claim" }}
  persistentVolumeClaim:
    claimName: {{ .Values.volume.name | default (printf "%s-%s" .Release.Name $kept) | quote }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- if .Values.engines }}
- name: recipe
  configMap:
    name: {{ include "trtspec.configMap" . | quote }}
- name: rollout
  configMap:
    name: {{ printf "%s-rollout" .Release.Name | quote }}
    optional: true
{{- with .Values.apiKeysSecret }}
- name: api-keys
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- else if .Values.server.files }}
- name: launch
  configMap:
    name: {{ include "trtspec.configMap" . | quote }}
{{- end }}
- name: temporary
  emptyDir: {}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.resources.sharedMemory | quote }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "trtspec.initContainers" -}}
{{- if .Values.engines }}
initContainers:
  - {{- include "trtspec.pullContainer" . | nindent 4 }}
{{- end }}
{{- end }}

{{- /* Takes a list: the chart's own context, and the containers as text. */}}
{{- define "trtspec.podTemplate" -}}
{{- $ := index . 0 }}
metadata:
  labels:
    {{- include "trtspec.podLabels" $ | nindent 4 }}
  annotations:
    {{- include "trtspec.podAnnotations" $ | nindent 4 }}
spec:
  {{- include "trtspec.podIdentity" $ | nindent 2 }}
  {{- include "trtspec.initContainers" $ | nindent 2 }}
  containers:
    - {{- index . 1 | nindent 6 }}
  {{- include "trtspec.podPlace" $ | nindent 2 }}
{{- end }}
