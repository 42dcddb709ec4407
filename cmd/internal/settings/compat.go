package settings

import "strings"

// meaningless lists flags of the existing runtime that start parts this program does not
// have: placement, scheduler, certificate and control planes, an internal gRPC port,
// profiling and a public port. Scripts written for it go on working.
func meaningless() []string {
	return []string{
		"actors-service",
		"control-plane-address",
		"control-plane-namespace",
		"control-plane-trust-domain",
		"dapr-internal-grpc-listen-address",
		"dapr-internal-grpc-port",
		"dapr-public-listen-address",
		"dapr-public-port",
		"enable-profiling",
		"internal-grpc-port",
		"mode",
		"placement-host-address",
		"profile-port",
		"public-port",
		"reminders-service",
		"scheduler-host-address",
		"sentry-address",
		"trust-anchors-file",
	}
}

// noOptValue is what a meaningless flag means without a value; only switches can be
// without one.
func noOptValue(name string) string {
	if strings.HasPrefix(name, "enable-") {
		return "true"
	}
	return ""
}

// ignoring is the value of a meaningless flag: it only remembers that it was given.
func ignoring(given *[]string, name string) *value {
	return &value{kind: "ignored",
		set: func(string) error { *given = append(*given, name); return nil },
		get: func() string { return "" },
	}
}

// DoubleDash rewrites single-dash long flags, as in -app-id x, which existing scripts
// use. known tells whether a name is a long flag. What follows a lone -- stays as it is.
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
