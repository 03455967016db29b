{{- define "noderefit.reference" -}}
{{- if not .root.Values.image.registry -}}
{{- fail "image.registry is not set: say where the images are, for example --set image.registry=registry.of.yours/noderefit" -}}
{{- end -}}
{{- printf "%s/%s:%s" .root.Values.image.registry .name (.root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- define "noderefit.image" -}}
image: {{ include "noderefit.reference" . }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}
