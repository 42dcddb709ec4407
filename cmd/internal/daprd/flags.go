package daprd

import "github.com/quorate/quorate/component/pluggable"

// Effect is the effect of a flag or variable of daprd in Quorate.
type Effect string

// The effects.
const (
	Works   Effect = "works"   // has the same effect as in daprd
	Differs Effect = "differs" // has an effect that differs from daprd, as Note describes
	Ignored Effect = "ignored" // accepted; a start lists all ignored flags in one line
)

// Flag is one flag of daprd.
type Flag struct {
	Name    string // without dashes
	Kind    string // kind of the value, for the help; "bool" for a switch
	Setting string // name of the Quorate setting that the flag sets; empty = none, or Line handles the flag
	Effect  Effect
	Note    string // for people: what the flag does in Quorate, or why it is ignored
}

// kindSwitch is the kind of a flag that may be given without a value.
const kindSwitch = "bool"

// Flags returns every flag of daprd 1.18, in the order of its help.
func Flags() []Flag {
	const (
		noPlacement = "Quorate has no placement service"
		noScheduler = "Quorate has no scheduler service"
		noSentry    = "no certificate service: --cluster-token-file secures traffic between nodes"
		noOperator  = "no control plane"
		noInternal  = "nodes reach each other on --peer-port"
		noProfile   = "no profiling endpoint"
		loopback    = "loopback when not given, where daprd listens on all interfaces"
	)
	return []Flag{
		{"actors-disseminate-timeout", "duration", "", Ignored, noPlacement},
		{"actors-service", "text", "", Ignored, "without effect in daprd, too"},
		{"allowed-origins", "origins", "allowed-origins", Differs, "an origin needs a scheme: https://app.example"},
		{"app-binding-options-timeout", "duration", "app-binding-options-timeout", Works, ""},
		{"app-channel-address", "address", "app-channel-address", Works, ""},
		{"app-health-check-path", "path", "app-health-check-path", Works, ""},
		{"app-health-probe-interval", "seconds", "app-health-probe-interval", Works, "0 is the default, 5"},
		{"app-health-probe-timeout", "milliseconds", "app-health-probe-timeout", Works, "0 is the default, 500"},
		{"app-health-threshold", "number", "app-health-threshold", Works, "0 is the default, 3"},
		{"app-id", "id", "app-id", Works, "required; letters, digits, `-` and `_`"},
		{"app-max-concurrency", "number", "app-max-concurrency", Works, "0 and less is no limit"},
		{"app-port", "port", "app-port", Works, "0 is no application"},
		{"app-protocol", "word", "app-protocol", Works, ""},
		{"app-ssl", kindSwitch, "", Works, "changes http to https and grpc to grpcs"},
		{"build-info", kindSwitch, "", Works, ""},
		{"components-path", "path", "", Works, "used when --resources-path is not given"},
		{"config", "paths", "config", Works, ""},
		{"control-plane-address", "address", "", Ignored, noOperator},
		{"control-plane-namespace", "name", "", Ignored, noOperator},
		{"control-plane-trust-domain", "name", "", Ignored, noOperator},
		{"dapr-block-shutdown-duration", "duration", "block-shutdown-duration", Works, ""},
		{"dapr-graceful-shutdown-seconds", "seconds", "graceful-shutdown-seconds", Differs, "0 is one second here, " +
			"so that stores close in order"},
		{"dapr-grpc-port", "port", "grpc-port", Works, ""},
		{"dapr-http-max-request-size", "MB", "", Works, "used when --max-body-size is not given"},
		{"dapr-http-port", "port", "http-port", Works, ""},
		{"dapr-http-read-buffer-size", "KB", "", Works, "used when --read-buffer-size is not given"},
		{"dapr-internal-grpc-listen-address", "address", "", Ignored, noInternal},
		{"dapr-internal-grpc-port", "port", "", Ignored, noInternal},
		{"dapr-listen-addresses", "addresses", "listen-address", Differs, loopback +
			"; other addresses need an API token or --insecure"},
		{"dapr-public-listen-address", "address", "health-listen-address", Works, ""},
		{"dapr-public-port", "port", "health-port", Differs, "serves health probes, not metadata"},
		{"disable-builtin-k8s-secret-store", kindSwitch, "", Works, "a Kubernetes secret store exists only when a " +
			"component declares it"},
		{"disable-init-endpoints", "words", "disable-init-endpoints", Works, "/dapr/subscribe is never called"},
		{"enable-api-logging", kindSwitch, "enable-api-logging", Works, ""},
		{"enable-app-health-check", kindSwitch, "enable-app-health-check", Works, ""},
		{"enable-metrics", kindSwitch, "enable-metrics", Works, ""},
		{"enable-mtls", kindSwitch, "", Ignored, noSentry},
		{"enable-profiling", kindSwitch, "", Ignored, noProfile},
		{"hot-reload-reconcile-interval", "duration", "reload-interval", Differs,
			"how often changed files are looked for; 1s when not given"},
		{"log-as-json", kindSwitch, "log-as-json", Works, ""},
		{"log-level", "word", "log-level", Works, "fatal is error"},
		{"max-body-size", "size", "max-body-size", Differs, "a value is also limited by the largest log entry, 64 MiB"},
		{"metrics-listen-address", "address", "metrics-listen-address", Differs, loopback},
		{"metrics-port", "port", "metrics-port", Works, ""},
		{"mode", "word", "", Ignored, noOperator},
		{"placement-host-address", "addresses", "", Ignored, noPlacement},
		{"profile-port", "port", "", Ignored, noProfile},
		{"read-buffer-size", "size", "read-buffer-size", Works, ""},
		{"reminders-service", "text", "", Ignored, "without effect in daprd, too"},
		{"resources-path", "paths", "resources-path", Works, ""},
		{"scheduler-host-address", "addresses", "", Ignored, noScheduler},
		{"scheduler-job-streams", "number", "", Ignored, noScheduler},
		{"sentry-address", "address", "", Ignored, noSentry},
		{"sentry-request-jwt-audiences", "words", "", Ignored, noSentry},
		{"unix-domain-socket", "path", "unix-domain-socket", Works, ""},
		{"version", kindSwitch, "", Works, ""},
		{"wait", kindSwitch, "", Works, ""},
	}
}

// Variable is an environment variable that daprd reads.
type Variable struct {
	Name   string
	Effect Effect
	Note   string // for people
}

// Variables returns the environment variables that daprd 1.18 reads, except those that only its tests use.
func Variables() []Variable {
	const noSentry = "no certificate service: --cluster-token-file secures traffic between nodes"
	return []Variable{
		{"APP_API_TOKEN", Works, ""},
		{"DAPR_API_TOKEN", Works, ""},
		{"DAPR_COMPONENTS_SOCKETS_FOLDER", Works, "without it, " + pluggable.DefaultFolder +
			" if it exists at the start"},
		{"DAPR_CONTROLPLANE_NAMESPACE", Ignored, "no control plane"},
		{"DAPR_CONTROLPLANE_TRUST_DOMAIN", Ignored, "no control plane"},
		{"DAPR_ENV_KEYS", Works, ""},
		{"DAPR_HOST_IP", Works, "the advertised address of a node with --join"},
		{"DAPR_HTTP_DISABLE_H2C", Works, ""},
		{"DAPR_SCHEDULER_HOST_ADDRESS_DNS_A", Ignored, "Quorate has no scheduler service"},
		{"DAPR_SENTRY_TOKEN_FILE", Ignored, noSentry},
		{"DAPR_TRUST_ANCHORS", Ignored, noSentry},
		{"NAMESPACE", Works, ""},
		{"OTEL_EXPORTER_OTLP_*", Works, ""},
		{"POD_NAME", Works, ""},
		{"SENTRY_LOCAL_IDENTITY", Ignored, noSentry},
	}
}
