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

// noOptValue returns the value of an ignored Dapr flag that is given without a value. This is "true" for a switch. For
// other flags it is "", so pflag requires a value.
func noOptValue(name string) string {
	if strings.HasPrefix(name, "enable-") {
		return "true"
	}
	return ""
}

// ignoring returns the pflag.Value of an ignored Dapr flag. When the flag is set, its name is appended to *given.
func ignoring(given *[]string, name string) *value {
	return &value{kind: "ignored",
		set: func(string) error { *given = append(*given, name); return nil },
		get: func() string { return "" },
	}
}

// DoubleDash adds a second dash to long flags with one dash, such as -app-id, because Dapr scripts often contain such
// flags. The function known reports whether a name is a long flag. Arguments after "--" are not changed.
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
