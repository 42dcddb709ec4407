{{- define "quorate.servers" -}}
app.kubernetes.io/name: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "quorate.image" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* Variables that servers and sidecars share. */}}
{{- define "quorate.env" -}}
- name: QUORATE_NODE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: QUORATE_ADVERTISE_ADDRESS
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: QUORATE_JOIN, value: {{ .Release.Name }}-servers.{{ .Release.Namespace }}.svc}
- {name: QUORATE_CLUSTER_TOKEN_FILE, value: /etc/quorate/token/cluster-token}
- {name: QUORATE_RESOURCES_PATH, value: /etc/quorate/components}
- {name: QUORATE_METRICS_LISTEN_ADDRESS, value: 0.0.0.0}
{{- end }}

{{- define "quorate.ports" -}}
- {name: gossip, containerPort: 7946, protocol: TCP}
- {name: gossip-udp, containerPort: 7946, protocol: UDP}
- {name: peer, containerPort: 7947, protocol: TCP}
- {name: metrics, containerPort: 9090, protocol: TCP}
{{- end }}

{{- define "quorate.mounts" -}}
- {name: token, mountPath: /etc/quorate/token, readOnly: true}
- {name: components, mountPath: /etc/quorate/components, readOnly: true}
{{- end }}

{{- define "quorate.volumes" -}}
- name: token
  secret:
    secretName: {{ .Values.tokenSecret }}
    defaultMode: 0440
- name: components
  configMap:
    name: {{ .Release.Name }}-components
{{- end }}

{{/* Checks the process only: a restart does not bring a lost majority back. */}}
{{- define "quorate.liveness" -}}
exec: {command: [/quorate, health, --live]}
periodSeconds: 10
timeoutSeconds: 4
failureThreshold: 6
{{- end }}
