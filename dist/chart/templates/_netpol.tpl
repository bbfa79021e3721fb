{{/* The container of netpol, as in kube-network-policies' own manifest; it enters pods' network namespaces. */}}
{{- define "flannel.netpol" -}}
- name: kube-network-policies
  image: {{ include "flannel.netpolImage" . | quote }}
  {{- with .image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  {{- if not (hasPrefix "/" (first (default (list "-") .netpol.args))) }}
  command: [/bin/netpol]
  {{- end }}
  {{- with .netpol.args }}
  args:
  {{- toYaml . | nindent 2 }}
  {{- end }}
  env:
  {{- range list "MY_NODE_NAME" "NODE_NAME" }}
  - name: {{ . }}
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  {{- end }}
  {{- with include "flannel.apiServer" .apiServer | trim }}
  {{- nindent 2 . }}
  {{- end }}
  securityContext:
    privileged: true
  resources:
    requests:
      cpu: 100m
      memory: 50Mi
  volumeMounts:
  - name: nri-plugin
    mountPath: /var/run/nri
  - name: netns
    mountPath: /var/run/netns
    mountPropagation: HostToContainer
  - name: api-access
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
{{- end }}
