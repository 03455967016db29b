{{- /*
The objects of a file that stay when the release goes. What is there already and is not of this release stays as it is:
what an earlier release, in another namespace perhaps, has left, and what somebody has made by hand.
*/}}
{{- define "noderefit.kept" -}}
{{- range $text := regexSplit "(?m)^---\\n" (.root.Files.Get .file) -1 }}
{{- $object := fromYaml $text }}
{{- $there := lookup $object.apiVersion $object.kind "" $object.metadata.name }}
{{- $by := (dig "metadata" "annotations" dict $there) }}
{{- $ours := and (eq (dig "meta.helm.sh/release-name" "" $by) $.root.Release.Name) (eq (dig "meta.helm.sh/release-namespace" "" $by) $.root.Release.Namespace) }}
{{- if or (not $there) $ours }}
---
{{ $text }}
{{- end }}
{{- end }}
{{- end -}}
