package settings

import "strings"

// meaningless returns the Dapr flags for features that Quorate does not have: the placement, scheduler, sentry and
// operator services, an internal gRPC port and profiling. Quorate accepts and ignores them, so that scripts for Dapr
// keep working.
func meaningless() []string {
	return []string{
		"actors-service",
		"control-plane-address",
		"control-plane-namespace",
		"control-plane-trust-domain",
		"dapr-internal-grpc-listen-address",
		"dapr-internal-grpc-port",
		"enable-profiling",
		"internal-grpc-port",
		"mode",
		"placement-host-address",
		"profile-port",
		"reminders-service",
		"scheduler-host-address",
		"sentry-address",
		"trust-anchors-file",
	}
}

// noOptValue returns the value of an ignored Dapr flag if the user gives none. For a switch, it returns "true". For
// other flags, it returns "", and pflag then requires a value.
func noOptValue(name string) string {
	if strings.HasPrefix(name, "enable-") {
		return "true"
	}
	return ""
}

// ignoring returns a pflag.Value for the ignored Dapr flag called name. When the flag is set, the value only appends
// name to the given list.
func ignoring(given *[]string, name string) *value {
	return &value{kind: "ignored",
		set: func(string) error { *given = append(*given, name); return nil },
		get: func() string { return "" },
	}
}

// DoubleDash returns args with two dashes before each long flag. Dapr scripts often write only one, as in -app-id x.
// The function known reports whether a name is a long flag. DoubleDash does not change arguments after "--".
func DoubleDash(args []string, known func(name string) bool) []string {
	out := make([]string, 0, len(args))
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(a, "-"), "=")
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && len(name) > 1 && known(name) {
			a = "-" + a
		}
		out = append(out, a)
	}
	return out
}
