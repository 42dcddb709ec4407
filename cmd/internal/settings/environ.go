package settings

import (
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

const envPrefix = "QUORATE_"

// serviceVariable matches the environment variables that Kubernetes and Docker add for a service whose name begins
// with "quorate", such as QUORATE_SERVICE_HOST and QUORATE_PORT_7946_TCP.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP|SCTP)`)

// UnknownVariables returns a fault.Invalid for each unknown variable whose name begins with QUORATE_. The error
// suggests the nearest known name, if there is one. Empty variables are ignored. The elements of environ have the form
// "NAME=value". These variables are known:
//
//   - the variables of the settings
//   - the variables whose names are in additional
//   - the variables that Kubernetes or Docker adds for a service
func (s *Set) UnknownVariables(environ []string, additional ...string) (problems []error) {
	known := slices.Clone(additional)
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
