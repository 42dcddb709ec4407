package settings

import (
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

const envPrefix = "QUORATE_"

// serviceVariable matches variables that Kubernetes and Docker add for a service with a name that begins with
// "quorate": QUORATE_SERVICE_HOST, QUORATE_PORT_7946_TCP and others.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP|SCTP)`)

// UnknownVariables returns an error for each non-empty variable of environ ("NAME=value") that begins with QUORATE_,
// but is neither a setting nor in others. Each error is a fault.Invalid, with the nearest known name if there is
// one. Variables of Kubernetes and Docker services are allowed.
func (s *Set) UnknownVariables(environ []string, others ...string) (problems []error) {
	known := slices.Clone(others)
	for _, st := range s.settings {
		known = append(known, st.Env...)
	}
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), value == "", slices.Contains(known, name):
			continue
		case serviceVariable.MatchString(name), strings.Contains(value, "://") && strings.HasSuffix(name, "_PORT"):
			continue
		}
		e := &fault.Error{Code: fault.Invalid, Op: "settings.Environment",
			Msg:  "the environment variable " + name + " is not a setting of Quorate",
			Hint: "quorate run --help lists the settings"}
		if near := suggest.For(name, known); near != "" {
			e.Hint = "did you mean " + near + "?"
		}
		problems = append(problems, e)
	}
	return problems
}
