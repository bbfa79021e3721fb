{{/*
The values as the templates use them. Keys of flannel's own chart, below flannel, netpol and global, take precedence over
ours with the same meaning. "ignored" lists what has no effect.
*/}}
{{- define "flannel.settings" -}}
{{- $v := deepCopy .Values }}
{{- if not (hasKey $v "annotationPrefix") }}{{/* helm upgrade --reuse-values: only the defaults of the former chart are set */}}
{{- $v = mergeOverwrite (include "flannel.defaults" . | fromYaml) $v }}
{{- end }}
{{- $f := default dict $v.flannel }}
{{- $global := default dict $v.global }}
{{- $ignored := list }}
{{- with get $f "image" }}
{{- $repository := get . "repository" }}
{{- if and $repository (not (include "flannel.isTheirs" $repository)) }}
{{- $_ := set $v.image "repository" $repository }}
{{- with get . "tag" }}{{ $_ := set $v.image "tag" (toString .) }}{{ end }}
{{- else }}
{{- $ignored = append $ignored "flannel.image: it is flannel's own image; set image instead" }}
{{- end }}
{{- end }}
{{- if get (default dict (get $f "flannel_cni")) "image" }}
{{- $ignored = append $ignored "flannel.flannel_cni.image: the CNI plugin is in the image of flanneld" }}
{{- end }}
{{- $_ := set $v "imagePullSecrets" (concat (default list (get $global "imagePullSecrets")) (default list (get $v "imagePullSecrets"))) }}
{{- range $key := list "cniBinDir" "cniConfDir" "resources" "tolerations" }}
{{- if not (kindIs "invalid" (get $f $key)) }}{{ if hasKey $f $key }}{{ $_ := set $v $key (get $f $key) }}{{ end }}{{ end }}
{{- end }}
{{- with (get $f "nodeSelector") }}{{ $_ := set $v "nodeSelector" (merge (deepCopy .) (dict "kubernetes.io/os" "linux")) }}{{ end }}
{{- if hasKey $f "enableNFTables" }}{{ $_ := set $v "nftables" (default false (get $f "enableNFTables")) }}{{ end }}
{{- if (get $f "backend") }}{{ $_ := set $v "backend" (include "flannel.backend" $f | fromYaml) }}{{ end }}
{{- $args := list "--kube-subnet-mgr" "--ip-masq" }}
{{- if (get $f "args") }}{{ $args = (get $f "args") }}{{ end }}
{{- $args = concat (without $args "") (default list (get $v "args")) }}
{{- range $args }}{{/* the last flag of a name takes effect, so the policy and the probes follow it */}}
{{- $value := regexReplaceAll "^[^=]*=" . "" }}
{{- if regexMatch "^--?(kube-annotation-prefix|healthz-(ip|port))$" . }}{{ fail (printf "args: write %s and its value as one argument, with = between them" .) }}{{ end }}
{{- if regexMatch "^--?kube-annotation-prefix=" . }}{{ $_ := set $v "annotationPrefix" (include "flannel.prefix" $value) }}{{ end }}
{{- if regexMatch "^--?healthz-ip=" . }}{{ $_ := set $v "argIP" $value }}{{ $args = without $args . }}{{ end }}
{{- if regexMatch "^--?healthz-port=" . }}
{{- if not (regexMatch "^(0|[1-9][0-9]*)$" $value) }}{{ fail (printf "args: %s: the port must be a number without leading zeros" .) }}{{ end }}
{{- $_ := set $v "argPort" $value }}{{ $args = without $args . }}
{{- end }}
{{- end }}
{{- $_ := set $v "args" $args }}
{{- if not (get $v "metrics") }}{{ $_ := set $v "metrics" (get (include "flannel.defaults" . | fromYaml) "metrics") }}{{ end }}{{/* --reuse-values */}}
{{- $_ := set $v "monitored" (get (default dict (get $v.metrics "podMonitor")) "enabled") }}
{{- $_ := set $v "exposed" (or $v.monitored (get $v.metrics "expose")) }}
{{- $_ := set $v "health" (include "flannel.health" $v | fromYaml) }}
{{- $_ := set $v "installConf" (not (get $f "skipCNIConfigInstallation")) }}
{{- $_ := set $v "cniConf" (get $f "cniConf") }}
{{- $_ := set $v "netpol" (default dict (get $v "netpol")) }}
{{- $_ := set $v "ignored" $ignored }}
{{- toYaml $v }}
{{- end }}

{{/* Not empty if it is an image of flannel itself, by the names under which that is published, in any registry. */}}
{{- define "flannel.isTheirs" -}}
{{- if regexMatch "(^|/)((flannel|flannel-io|coreos|flannelcni)/flannel|mirrored-flannel(-io|cni)-flannel)(-arm|-arm64|-amd64)?$" . }}yes{{ end }}
{{- end }}

{{/* The prefix of annotations, completed like the value of --kube-annotation-prefix. */}}
{{- define "flannel.prefix" -}}
{{- $p := . }}
{{- if not (contains "/" $p) }}{{ $p = print $p "/" }}{{ end }}
{{- if not (or (hasSuffix "/" $p) (hasSuffix "-" $p)) }}{{ $p = print $p "-" }}{{ end }}
{{- $p }}
{{- end }}

{{/* The Backend from the values of flannel's chart. Empty and zero values mean the backend's defaults. */}}
{{- define "flannel.backend" -}}
{{- $keys := dict }}
{{- if eq .backend "vxlan" }}
{{- $keys = dict "vni" "VNI" "backendPort" "Port" "mtu" "MTU" "GBP" "GBP" "directRouting" "DirectRouting" "macPrefix" "MacPrefix" }}
{{- else if eq .backend "wireguard" }}
{{- $keys = dict "backendPort" "ListenPort" "backendPortv6" "ListenPortV6" "mtu" "MTU" "psk" "PSK" "tunnelMode" "Mode" "keepaliveInterval" "PersistentKeepaliveInterval" }}
{{- else if eq .backend "ipip" }}
{{- $keys = dict "directRouting" "DirectRouting" }}
{{- else if eq .backend "udp" }}
{{- $keys = dict "backendPort" "Port" }}
{{- else if eq .backend "ipsec" }}
{{- $keys = dict "psk" "PSK" }}
{{- end }}
{{- $conf := dict "Type" .backend }}
{{- range $key, $name := $keys }}
{{- $value := get $ $key }}
{{- if has $key (list "backendPort" "backendPortv6" "mtu" "vni" "keepaliveInterval") }}{{ $value = int $value }}{{ end }}{{/* may be a string */}}
{{- with $value }}{{ $_ := set $conf $name . }}{{ end }}
{{- end }}
{{- toYaml $conf }}
{{- end }}

{{/*
Address, port and probes of the health server. With flannel.healthz it listens on all addresses, as flannel does, and
likewise for Prometheus. Arguments of flanneld take precedence. Without a host, kubelet asks the node's address.
*/}}
{{- define "flannel.health" -}}
{{- $theirs := (get (default dict .flannel) "healthz") }}
{{- $host := "127.0.0.1" }}
{{- $port := .healthPort }}
{{- if .exposed }}{{ $host = "" }}{{ end }}
{{- if $theirs }}
{{- $host = "" }}
{{- $port = 8081 }}
{{- if hasKey $theirs "port" }}{{ $port = (get $theirs "port") }}{{ end }}
{{- end }}
{{- $ip := default "0.0.0.0" $host }}
{{- if hasKey . "argIP" }}
{{- $ip = .argIP }}
{{- $host = ternary "" $ip (regexMatch "^(0\\.0\\.0\\.0|::)?$|[$]" $ip) }}{{/* also with a variable, such as $(NODE_IP) */}}
{{- end }}
{{- if hasKey . "argPort" }}{{ $port = .argPort }}{{ end }}
{{- if and .exposed (not (int $port)) }}{{ fail "metrics needs a health port other than 0" }}{{ end }}
{{- $health := dict "ip" $ip "port" (int $port) }}
{{- if int $port }}
{{- $at := dict "port" (int $port) }}
{{- with $host }}{{ $_ := set $at "host" . }}{{ end }}
{{- $live := dict "httpGet" (merge (dict "path" "/healthz") $at) "periodSeconds" 20 "timeoutSeconds" 5 "failureThreshold" 6 }}
{{- $ready := dict "httpGet" (merge (dict "path" "/readyz") $at) "periodSeconds" 5 "timeoutSeconds" 5 }}
{{- $_ := set $health "liveness" (include "flannel.probe" (list $live (get (default dict $theirs) "livenessProbe")) | fromYaml) }}
{{- $_ := set $health "readiness" (include "flannel.probe" (list $ready (get (default dict $theirs) "readinessProbe")) | fromYaml) }}
{{- end }}
{{- toYaml $health }}
{{- end }}

{{/* The API server's address, in a container's env; nothing by default. */}}
{{- define "flannel.apiServer" -}}
{{- with .host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
{{- end }}
{{- with .port }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The port of /metrics, of a container. */}}
{{- define "flannel.metricsPort" -}}
ports:
- name: metrics
  containerPort: {{ . }}
{{- end }}

{{/* The default probe, changed by the given value: fields, another handler, or false for no probe. */}}
{{- define "flannel.probe" -}}
{{- $probe := index . 0 }}
{{- $given := index . 1 }}
{{- if kindIs "bool" $given }}
{{- if not $given }}{{ $probe = dict }}{{ end }}
{{- else if $given }}
{{- if and (hasKey $given "enabled") (not (get $given "enabled")) }}
{{- $probe = dict }}
{{- else }}
{{- if or (get $given "exec") (get $given "tcpSocket") (get $given "grpc") }}{{ $_ := unset $probe "httpGet" }}{{ end }}
{{- $probe = mergeOverwrite $probe (omit $given "enabled") }}
{{- end }}
{{- end }}
{{- toYaml $probe }}
{{- end }}

{{/* The network configuration. A key of netConf takes precedence over the same key from other values. */}}
{{- define "flannel.netConf" -}}
{{- if not (or .podCidr .podCidrv6) }}{{ fail "podCidr or podCidrv6: at least one is needed" }}{{ end }}
{{- $conf := dict "Backend" .backend "EnableNFTables" .nftables }}
{{- if .podCidr }}{{ $_ := set $conf "Network" .podCidr }}{{ else }}{{ $_ := set $conf "EnableIPv4" false }}{{ end }}
{{- if .podCidrv6 }}{{ $_ := set $conf "IPv6Network" .podCidrv6 }}{{ $_ := set $conf "EnableIPv6" true }}{{ end }}
{{- mergeOverwrite $conf (deepCopy .netConf) | toPrettyJson }}
{{- end }}

{{/* The backend of the network configuration, in lower case: flanneld accepts either. */}}
{{- define "flannel.backendType" -}}
{{- $conf := include "flannel.netConf" . | fromJson }}
{{- get (default dict (get $conf "Backend")) "Type" | toString | lower }}
{{- end }}

{{/*
A DaemonSet's selector cannot be changed. flannel's chart selects app alone. An existing DaemonSet that selects app and
k8s-app, as flannel's released manifest does, keeps that. The pods' labels match both selectors.
*/}}
{{- define "flannel.selector" -}}
{{- $there := lookup "apps/v1" "DaemonSet" .Release.Namespace "kube-flannel-ds" }}
{{- $both := dict "app" "flannel" "k8s-app" "flannel" }}
{{- if and $there (eq ($there.spec.selector.matchLabels | toJson) ($both | toJson)) }}
{{- toYaml $both }}
{{- else }}
{{- toYaml (dict "app" "flannel") }}
{{- end }}
{{- end }}

{{- define "flannel.image" }}{{ .image.repository }}:{{ .image.tag }}{{ end }}

{{- define "flannel.windowsImage" }}{{ .windows.image.repository }}:{{ .windows.image.tag }}{{ end }}

{{- define "flannel.netpolImage" -}}
{{- if kindIs "map" .netpol.image }}{{ .netpol.image.repository }}:{{ .netpol.image.tag }}{{ else }}{{ .netpol.image }}{{ end }}
{{- end }}

{{/* Fail for values that Windows does not support, and for arguments that probes and policy do not follow. */}}
{{- define "flannel.windowsCheck" -}}
{{- range .windows.args }}
{{- if regexMatch "^--?(healthz-(ip|port)|kube-annotation-prefix)(=|$)" . }}{{ fail (printf "windows.args: %s: set healthPort, metrics.expose or annotationPrefix instead" .) }}{{ end }}
{{- end }}
{{- if eq .backend.Type "vxlan" -}}
{{- if lt (int (default 1 (get .backend "VNI"))) 4096 }}{{ fail "backend.VNI: Windows supports no VNI below 4096; set 4096 or above" }}{{ end -}}
{{- if ne (int (default 8472 (get .backend "Port"))) 4789 }}{{ fail "backend.Port: Linux and Windows nodes must use the same port; set 4789" }}{{ end -}}
{{- if get .backend "DirectRouting" }}{{ fail "backend.DirectRouting: Windows does not accept packets outside of the tunnel; set false" }}{{ end -}}
{{- else if ne .backend.Type "host-gw" }}{{ fail (printf "backend.Type: Windows supports vxlan and host-gw, not %s" .backend.Type) }}{{ end }}
{{- end }}
