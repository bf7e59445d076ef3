{{- define "crcr.labels" -}}
app.kubernetes.io/name: crcr
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "crcr.selector" -}}
app.kubernetes.io/name: crcr
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "crcr.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}
