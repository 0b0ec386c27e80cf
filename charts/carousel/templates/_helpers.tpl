{{- define "carousel.selector" -}}
app.kubernetes.io/name: carousel-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "carousel.labels" -}}
{{ include "carousel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: carousel
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "carousel.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-operator
{{- end }}

{{- define "carousel.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "carousel.name" .) }}
{{- end }}

{{- /* What the operator may do in a namespace that it watches. */}}
{{- define "carousel.rules" -}}
- apiGroups: [carousel.dev]
  resources: [inferenceservers]
  verbs: [get, list, watch]
- apiGroups: [carousel.dev]
  resources: [inferenceservers/status]
  verbs: [get, patch]
- apiGroups: [carousel.dev]
  resources: [inferenceservers/finalizers]  # owner references that block deletion, where the cluster checks that
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]  # makes the admin token; reads the Secrets that a spec names
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
