{{- /* The secret with the web page's certificate; empty: there is none, or no page. */}}
{{- define "noderefit.pageCertificate" -}}
{{- if .Values.page.enabled -}}
{{- if not (or .Values.page.certificateSecret (regexMatch "^(localhost|127[.0-9]+|\\[::1\\]):[0-9]+$" .Values.page.bindAddress)) -}}
{{- fail "page.bindAddress is reached from elsewhere, and browsers send tokens there: page.certificateSecret is needed" -}}
{{- end -}}
{{- .Values.page.certificateSecret -}}
{{- end -}}
{{- end -}}
