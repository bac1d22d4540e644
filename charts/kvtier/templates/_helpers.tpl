{{- define "kvtier.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "kvtier.fullname" -}}
{{- $name := include "kvtier.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "kvtier.selector" -}}
app.kubernetes.io/name: {{ include "kvtier.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "kvtier.labels" -}}
{{ include "kvtier.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kvtier.webhook.fullname" -}}
{{ include "kvtier.fullname" . }}-webhook
{{- end }}

{{- define "kvtier.webhook.selector" -}}
{{ include "kvtier.selector" . | replace "component: controller" "component: webhook" }}
{{- end }}

{{- define "kvtier.webhook.labels" -}}
{{ include "kvtier.labels" . | replace "component: controller" "component: webhook" }}
{{- end }}

{{- define "kvtier.webhook.secret" -}}
{{ .Values.webhook.tls.secretName | default (printf "%s-tls" (include "kvtier.webhook.fullname" .)) }}
{{- end }}

{{- define "kvtier.limiter.fullname" -}}
{{ include "kvtier.fullname" . }}-limiter
{{- end }}

{{- /* Not below the name above: with the longest release name that would be too long. */ -}}
{{- define "kvtier.limiter.peers" -}}
{{ include "kvtier.fullname" . }}-peers
{{- end }}

{{- define "kvtier.limiter.selector" -}}
{{ include "kvtier.selector" . | replace "component: controller" "component: limiter" }}
{{- end }}

{{- define "kvtier.limiter.labels" -}}
{{ include "kvtier.labels" . | replace "component: controller" "component: limiter" }}
{{- end }}

{{- define "kvtier.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "kvtier.fullname" .) }}
{{- end }}

{{- define "kvtier.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* "true" when a switch of auto, true or false is on. Arguments: context, setting, API. */ -}}
{{- define "kvtier.enabled" -}}
{{- if eq (toString .setting) "auto" -}}
{{- if .context.Capabilities.APIVersions.Has .api -}}true{{- end -}}
{{- else if .setting -}}true{{- end -}}
{{- end }}

{{- define "kvtier.subjects" -}}
- kind: ServiceAccount
  name: {{ include "kvtier.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
