// Package daprd translates the command line and the environment of Dapr's sidecar, daprd, into settings.
//
// It owns the list of daprd's flags and environment variables, and their effect in Quorate. It does not read the
// environment itself, and it does not start a node. It has no goroutines.
package daprd

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/quorate/quorate/internal/fault"
)

// Line translates a command line of daprd into flags of Quorate. First call Bind, then parse the command line, and then
// call Finish. A Line is not safe for concurrent use.
type Line struct {
	settings *pflag.FlagSet      // the flags of Quorate, which receive the values
	given    map[string][]string // values of flags that set nothing immediately
	ignored  []string            // names of flags
}

// New returns a Line that sets Quorate's flags in the given flag set. The flag set must already contain them.
func New(settings *pflag.FlagSet) *Line {
	return &Line{settings: settings, given: map[string][]string{}}
}

// Bind adds every flag of daprd to fs. It also adds Quorate's own flags, such as those of the cluster, except hidden
// ones and those that fs already has.
func (l *Line) Bind(fs *pflag.FlagSet) {
	taken := map[string]bool{}
	for _, f := range Flags() {
		taken[f.Name], taken[f.Setting] = true, true
		added := fs.VarPF(&flagValue{line: l, flag: f}, f.Name, "", f.Note)
		if f.Kind == kindSwitch {
			added.NoOptDefVal = "true"
		}
	}
	l.settings.VisitAll(func(f *pflag.Flag) {
		if taken[f.Name] || fs.Lookup(f.Name) != nil || f.Hidden {
			return
		}
		added := fs.VarPF(&passed{l.settings, f}, f.Name, "", f.Usage)
		added.NoOptDefVal, added.DefValue = f.NoOptDefVal, f.DefValue
	})
}

// Finish applies the flags whose meaning depends on other flags. Call it once, after fs has parsed the command line.
// It returns an error if a value is invalid or --app-id is missing.
func (l *Line) Finish() error {
	if l.on("app-ssl") {
		with := map[string]string{"": "https", "http": "https", "grpc": "grpcs"}
		f := l.settings.Lookup("app-protocol")
		name := ""
		if f.Changed {
			name = f.Value.String()
		}
		if to, ok := with[name]; ok {
			if err := l.settings.Set("app-protocol", to); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		l.older("components-path", "resources-path", func(s string) (string, error) { return s, nil }),
		l.older("dapr-http-max-request-size", "max-body-size", func(s string) (string, error) {
			return inUnits(s, "Mi")
		}),
		l.older("dapr-http-read-buffer-size", "read-buffer-size", func(s string) (string, error) {
			return inUnits(s, "Ki")
		}),
		l.needID())
}

// needID returns fault.Invalid if --app-id is missing from a command line that starts a node. The flag is required, as
// in daprd, because two sidecars without ids would share their state.
func (l *Line) needID() error {
	if l.Asks() != "" || l.settings.Changed("app-id") {
		return nil
	}
	return fault.New(fault.Invalid, "daprd.Finish", "--app-id is missing")
}

// older sets a setting from an older flag of daprd, unless the newer flag for this setting is also given. The function
// convert converts the value of the flag to the text of the setting.
func (l *Line) older(flag, setting string, convert func(string) (string, error)) error {
	values := l.given[flag]
	if len(values) == 0 || l.settings.Changed(setting) {
		return nil
	}
	text, err := convert(values[len(values)-1])
	if err == nil && text != "" {
		err = l.set(setting, text)
	}
	if err != nil {
		return refused(flag, values[len(values)-1], err)
	}
	return nil
}

// inUnits converts a number without a unit to the text of a size setting. For example, inUnits("4", "Mi") returns
// "4Mi". See sizeText for 0 and negative numbers.
func inUnits(s, unit string) (string, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return "", errors.New("give a number")
	}
	return sizeText(n, strconv.Itoa(n)+unit), nil
}

// sizeText converts the size n of a daprd flag to the text of a size setting. A positive size becomes the given text, 0
// becomes "unlimited", and a negative size becomes "", so that the setting keeps its default.
func sizeText(n int, text string) string {
	switch {
	case n == 0:
		return "unlimited"
	case n < 0:
		return ""
	}
	return text
}

func refused(flag, value string, why error) error {
	return &fault.Error{Code: fault.Invalid, Op: "daprd", Msg: "--" + flag + " " + strconv.Quote(value) + " is refused",
		Hint: why.Error()}
}

// The requests that a command line can make instead of a start.
const (
	AsksVersion   = "version"
	AsksBuildInfo = "build-info"
	AsksWait      = "wait"
)

// Asks returns AsksVersion, AsksBuildInfo or AsksWait if the command line has the corresponding flag. Otherwise the
// command line starts a node, and Asks returns "".
func (l *Line) Asks() string {
	for _, name := range []string{AsksVersion, AsksBuildInfo, AsksWait} {
		if l.on(name) {
			return name
		}
	}
	return ""
}

// on reports whether a switch is given and true.
func (l *Line) on(name string) bool {
	values := l.given[name]
	return len(values) > 0 && values[len(values)-1] == "true"
}

// Notes returns one line that lists the flags, variables and arguments that Quorate ignores, or nil if there are none.
// The arguments in args are those that are not flags. daprd ignores them too.
func (l *Line) Notes(args []string, getenv func(string) string) []string {
	var names []string
	for _, f := range l.ignored {
		names = append(names, "--"+f)
	}
	slices.Sort(names)
	for _, v := range Variables() {
		if v.Effect == Ignored && getenv(v.Name) != "" {
			names = append(names, v.Name)
		}
	}
	for _, a := range args {
		names = append(names, strconv.Quote(a))
	}
	if len(names) == 0 {
		return nil
	}
	return []string{"ignored, without effect in Quorate: " + strings.Join(slices.Compact(names), ", ")}
}

// set sets a flag of Quorate. The error for an invalid value contains only the reason, without the name and the value.
func (l *Line) set(name, text string) error {
	err := l.settings.Set(name, text)
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return bad.Unwrap()
	}
	return err
}

// passed is the value of a flag that only Quorate has. It passes the text of the flag to the setting with the same
// name.
type passed struct {
	settings *pflag.FlagSet
	flag     *pflag.Flag
}

func (p *passed) Set(s string) error { return (&Line{settings: p.settings}).set(p.flag.Name, s) }
func (p *passed) Type() string       { return p.flag.Value.Type() }
func (p *passed) String() string {
	if p == nil || p.flag == nil { // pflag calls String on a zero value
		return ""
	}
	return p.flag.Value.String()
}

// flagValue is the value of one flag of daprd.
type flagValue struct {
	line *Line
	flag Flag
}

// String returns "", because the value is stored in the flags of Quorate.
func (v *flagValue) String() string { return "" }

// Type returns the kind of the value, for the help.
func (v *flagValue) Type() string { return v.flag.Kind }

// Set implements pflag.Value.
func (v *flagValue) Set(s string) error {
	if v.flag.Kind == kindSwitch {
		on, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("give true or false")
		}
		s = strconv.FormatBool(on)
	}
	if v.flag.Effect == Ignored {
		if s != "" && s != "false" { // daprd treats these values like a missing flag
			v.line.ignored = append(v.line.ignored, v.flag.Name)
		}
		return nil
	}
	if v.flag.Setting == "" {
		v.line.given[v.flag.Name] = append(v.line.given[v.flag.Name], s)
		return nil
	}
	text, err := v.flag.translate(s)
	if err != nil || text == "" {
		return err
	}
	return v.line.set(v.flag.Setting, text)
}

// translate converts the value s of a daprd flag to the value of the Quorate setting. If the result is empty, the
// setting keeps its default.
func (f Flag) translate(s string) (string, error) {
	switch f.Name {
	case "app-health-probe-interval", "app-health-probe-timeout", "app-health-threshold", "app-port":
		return positive(s)
	case "app-max-concurrency":
		n, err := strconv.Atoi(cmp.Or(s, "0"))
		return strconv.Itoa(max(n, -1)), err
	case "app-protocol", "disable-init-endpoints":
		return strings.ToLower(s), nil
	case "dapr-graceful-shutdown-seconds":
		if s == "0" {
			return "1", nil
		}
		return positive(s)
	case "app-binding-options-timeout", "dapr-block-shutdown-duration":
		if d, err := time.ParseDuration(s); err == nil && d <= 0 {
			return "", nil
		}
	case "log-level":
		if strings.EqualFold(s, "fatal") {
			return "error", nil
		}
	case "max-body-size":
		if n, err := strconv.Atoi(s); err == nil {
			return sizeText(n, s), nil
		}
	case "read-buffer-size":
		if n, err := strconv.Atoi(s); err == nil && n <= 0 {
			return "", nil
		}
	}
	return s, nil
}

// positive returns s if it is a number above zero. It returns "" for any other number and for an empty text.
func positive(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return "", errors.New("give a number")
	}
	if n <= 0 {
		return "", nil
	}
	return s, nil
}
