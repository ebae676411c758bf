{{- /* Names and labels. */}}

{{- define "trtspec.serviceAccount" -}}
{{ .Values.serviceAccount | default .Release.Name }}
{{- end }}

{{- define "trtspec.configMap" -}}
{{- if .Values.engines -}}
{{ .Release.Name }}-recipe-{{ .Values.engines.recipe | sha256sum | trunc 8 }}
{{- else -}}
{{ .Release.Name }}-launch-{{ .Values.digest | sha256sum | trunc 8 }}
{{- end }}
{{- end }}

{{- /* What is kept on the volume. */}}
{{- define "trtspec.kept" -}}
{{ ternary "engines" "models" (not (empty .Values.engines)) }}
{{- end }}

{{- /* The Service that clients find: KServe makes one of its own. */}}
{{- define "trtspec.service" -}}
{{ .Release.Name }}{{ if .Values.kserve }}-predictor{{ end }}
{{- end }}

{{- /* By these the servers are chosen; they never change. */}}
{{- define "trtspec.selector" -}}
{{ include "trtspec.ofInstance" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "trtspec.ofInstance" -}}
app.kubernetes.io/name: trtspec
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* Labels of every object. Those of the values do not replace what others depend on. */}}
{{- define "trtspec.labels" -}}
{{- include "trtspec.labelsWith" (list . dict) }}
{{- end }}

{{- define "trtspec.monitoringLabels" -}}
{{- include "trtspec.labelsWith" (list . .Values.monitoring.labels) }}
{{- end }}

{{- /* Takes a list: the chart's own context, and labels that win over those of the values. */}}
{{- define "trtspec.labelsWith" -}}
{{- $ := index . 0 }}
{{- $own := dict "app.kubernetes.io/version" $.Chart.AppVersion "app.kubernetes.io/managed-by" $.Release.Service }}
{{- $selector := include "trtspec.selector" $ | fromYaml }}
{{- mergeOverwrite (dict) $.Values.labels (index . 1) $selector $own | toYaml }}
{{- end }}

{{- define "trtspec.metadata" -}}
name: {{ .Release.Name | quote }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "trtspec.labels" . | nindent 2 }}
{{- end }}

{{- /* Where every pod may go: to names, and to the store or the Hub. */}}
{{- define "trtspec.outward" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- with .Values.egressPorts }}
- ports:
    {{- range . }}
    - port: {{ int64 . }}
      protocol: TCP
    {{- end }}
{{- end }}
{{- end }}

{{- /* What an autoscaler sets the number of. */}}
{{- define "trtspec.workload" -}}
{{- if and .Values.group (not .Values.kserve) -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
name: {{ .Release.Name | quote }}
{{- else -}}
apiVersion: apps/v1
kind: Deployment
name: {{ include "trtspec.service" . | quote }}
{{- end }}
{{- end }}

{{- /* Servers load for minutes: many come at once, and one leaves when it has long not been missed. */}}
{{- define "trtspec.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - type: Percent
      value: 100
      periodSeconds: 60
scaleDown:
  stabilizationWindowSeconds: 600
  policies:
    - type: Pods
      value: 1
      periodSeconds: 120
{{- end }}
