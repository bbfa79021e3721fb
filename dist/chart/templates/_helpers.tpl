{{/* The network configuration. A key of netConf wins over the same one made of other values. */}}
{{- define "flannel.netConf" -}}
{{- if not (or .Values.podCidr .Values.podCidrv6) }}{{ fail "podCidr or podCidrv6: at least one is needed" }}{{ end }}
{{- $conf := dict "Backend" .Values.backend "EnableNFTables" .Values.nftables }}
{{- if .Values.podCidr }}{{ $_ := set $conf "Network" .Values.podCidr }}{{ else }}{{ $_ := set $conf "EnableIPv4" false }}{{ end }}
{{- if .Values.podCidrv6 }}{{ $_ := set $conf "IPv6Network" .Values.podCidrv6 }}{{ $_ := set $conf "EnableIPv6" true }}{{ end }}
{{- mergeOverwrite $conf (deepCopy .Values.netConf) | toPrettyJson }}
{{- end }}

{{- define "flannel.image" }}{{ .Values.image.repository }}:{{ .Values.image.tag }}{{ end }}
