{{/* The network configuration. A key of netConf wins over the same one made of other values. */}}
{{- define "flannel.netConf" -}}
{{- if not (or .Values.podCidr .Values.podCidrv6) }}{{ fail "podCidr or podCidrv6: at least one is needed" }}{{ end }}
{{- $conf := dict "Backend" .Values.backend "EnableNFTables" .Values.nftables }}
{{- if .Values.podCidr }}{{ $_ := set $conf "Network" .Values.podCidr }}{{ else }}{{ $_ := set $conf "EnableIPv4" false }}{{ end }}
{{- if .Values.podCidrv6 }}{{ $_ := set $conf "IPv6Network" .Values.podCidrv6 }}{{ $_ := set $conf "EnableIPv6" true }}{{ end }}
{{- mergeOverwrite $conf (deepCopy .Values.netConf) | toPrettyJson }}
{{- end }}

{{- define "flannel.image" }}{{ .Values.image.repository }}:{{ .Values.image.tag }}{{ end }}

{{- define "flannel.windowsImage" }}{{ .Values.windows.image.repository }}:{{ .Values.windows.image.tag }}{{ end }}

{{/* Windows: what its HNS does not take is refused here rather than on every node. */}}
{{- define "flannel.windowsCheck" -}}
{{- if eq .Values.backend.Type "vxlan" -}}
{{- if lt (int (default 1 (get .Values.backend "VNI"))) 4096 }}{{ fail "backend.VNI: Windows takes none below 4096" }}{{ end -}}
{{- if ne (int (default 8472 (get .Values.backend "Port"))) 4789 }}{{ fail "backend.Port: nodes with Windows and with Linux meet at 4789" }}{{ end -}}
{{- if get .Values.backend "DirectRouting" }}{{ fail "backend.DirectRouting: Windows does not take what comes past the tunnel" }}{{ end -}}
{{- else if ne .Values.backend.Type "host-gw" }}{{ fail (printf "backend.Type: Windows has vxlan and host-gw, not %s" .Values.backend.Type) }}{{ end }}
{{- end }}
