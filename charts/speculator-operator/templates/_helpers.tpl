{{- define "speculator.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "speculator.serviceAccount" -}}
{{- default (ternary (include "speculator.name" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{- define "speculator.selector" -}}
app.kubernetes.io/name: speculator-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "speculator.labels" -}}
{{ include "speculator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "speculator.image" -}}
{{ .repository }}:{{ .tag }}
{{- end }}

{{/* What the operator does with what it owns and watches. docs/contracts.md names the objects. */}}
{{- define "speculator.rules" -}}
# Speculators: finalizers by patch, status by update. It never creates or deletes one.
- apiGroups: [speculator.dev]
  resources: [speculators]
  verbs: [get, list, watch, patch]
- apiGroups: [speculator.dev]
  resources: [speculators/status]
  verbs: [update]
# Owner references that block deletion are checked against this right.
- apiGroups: [speculator.dev]
  resources: [speculators/finalizers]
  verbs: [update]
# Policies are a person's.
- apiGroups: [speculator.dev]
  resources: [trainingpolicies, syncpolicies]
  verbs: [get, list, watch]
# The window on the ledger.
- apiGroups: [speculator.dev]
  resources: [speculatorversions]
  verbs: [get, list, create, patch, delete]
- apiGroups: [speculator.dev]
  resources: [speculatorversions/status]
  verbs: [patch]
# Objects of a Speculator, by server-side apply. Those that are watched heal at once, the others within seconds.
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch, delete]
# Tokens that it makes, and the S3 credentials that a Speculator names. No watch: nothing is kept in memory.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, create, patch, delete]
# Pods are read, never written.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}
