// Package settings reads flags, the environment and a YAML file into a node.Config, and records the source of each
// value.
//
// It owns the names of the settings, their precedence (flag, environment, file, default) and their text form. It does
// not validate the configuration: node.Config.Validate does that. It accesses the environment and files only through
// functions in its Input. It has no goroutines.
package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/node"
)

// Group is the heading of a list of settings.
type Group string

// The groups, in the order of the help.
const (
	Application Group = "Application"
	API         Group = "API"
	Components  Group = "Components"
	Data        Group = "Data"
	Cluster     Group = "Cluster"
	Security    Group = "Security"
	Metrics     Group = "Metrics"
	Process     Group = "Process"
)

// Groups returns every Group in order.
func Groups() []Group {
	return []Group{Application, API, Components, Data, Cluster, Security, Metrics, Process}
}

// Setting is one setting of a node.
type Setting struct {
	Name    string   // name of the flag, without dashes
	Aliases []string // further names of the flag
	Env     []string // environment variables; the first non-empty one is used
	Key     string   // key in the file; empty = not allowed there
	Group   Group
	Usage   string // one phrase
	Default string // default value as text; empty = none

	noFlag bool // a secret, which must not be on a command line
	value  *value
	source Source
	texts  []string // values from the file, in order
}

// Flag returns the flag with its dashes, or "" for a setting without a flag.
func (s *Setting) Flag() string {
	if s.noFlag {
		return ""
	}
	return "--" + s.Name
}

// Words returns the accepted values of a setting that accepts only a few words. For any other setting it returns nil.
func (s *Setting) Words() []string { return s.value.words }

// Kind returns the kind of value as a word for the help, for example "port" or "duration".
func (s *Setting) Kind() string { return s.value.kind }

// Value returns the effective value as text. A secret is redacted.
func (s *Setting) Value() string { return s.value.get() }

// Source returns where the effective value came from.
func (s *Setting) Source() Source { return s.source }

// Source is where a value came from.
type Source struct {
	Kind  string `json:"kind"`            // flag, env, file or default
	Where string `json:"where,omitempty"` // name of the flag or variable, or file and line
}

// String returns the source as one phrase.
func (s Source) String() string { return strings.TrimSpace(s.Kind + " " + s.Where) }

// files holds the paths of the files that this package itself reads. The node does not read these files.
type files struct {
	settings string
	tokens   string
}

// Set is the set of all settings of a node. All settings write to fields of one node.Config. A Set is not safe for
// concurrent use.
type Set struct {
	config   node.Config
	files    files
	settings []*Setting
	ignored  []string // meaningless flags that were given
}

// New returns a Set with all settings of a node. None of them has a value yet.
func New() *Set {
	s := &Set{}
	s.settings = table(&s.config, &s.files)
	for _, st := range s.settings {
		st.complete()
		st.source = Source{Kind: "default"}
	}
	return s
}

// complete sets the environment variable and the file key of a setting, which are derived from the name of the
// setting.
func (s *Setting) complete() {
	if !s.noFlag {
		s.Env = append([]string{envPrefix + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))}, s.Env...)
		s.Key = camel(s.Name)
	}
	if s.Name == "config-file" {
		s.Key = ""
	}
}

// camel converts "http-port" to "httpPort".
func camel(name string) string {
	words := strings.Split(name, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// All returns all settings in the order of the help. The settings of a group follow one another.
func (s *Set) All() []*Setting { return s.settings }

// Named returns the setting with the given name, or nil.
func (s *Set) Named(name string) *Setting {
	for _, st := range s.settings {
		if st.Name == name {
			return st
		}
	}
	return nil
}

// Bind adds the flags of all settings to fs. Aliases of these flags work too, but are not in the help. Bind also adds
// the Dapr flags that Quorate accepts and ignores, as hidden flags.
func (s *Set) Bind(fs *pflag.FlagSet) {
	var names []string
	for _, st := range s.settings {
		names = append(names, st.Name)
	}
	s.BindOnly(fs, names...)
	for _, name := range meaningless() {
		f := fs.VarPF(ignoring(&s.ignored, name), name, "", "no meaning here")
		f.Hidden, f.NoOptDefVal = true, noOptValue(name)
	}
}

// BindOnly adds flags only for the named settings, for commands that need no others.
func (s *Set) BindOnly(fs *pflag.FlagSet, names ...string) {
	aliases := map[string]string{}
	for _, name := range names {
		st := s.Named(name)
		if st.noFlag {
			continue
		}
		f := fs.VarPF(st.value, st.Name, "", st.Usage)
		f.DefValue = st.Default
		if st.value.kind == KindSwitch {
			f.NoOptDefVal = "true"
		}
		for _, a := range st.Aliases {
			aliases[a] = st.Name
		}
	}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if canonical, ok := aliases[name]; ok {
			name = canonical
		}
		return pflag.NormalizedName(name)
	})
}

// Warnings returns one line that lists the given flags that Quorate ignores. It returns nil if there are none.
func (s *Set) Warnings() []string {
	if len(s.ignored) == 0 {
		return nil
	}
	names := slices.Compact(slices.Sorted(slices.Values(s.ignored)))
	return []string{"ignored flags, which have no effect in Quorate: --" + strings.Join(names, ", --")}
}

// FlagError converts an error of package pflag to a fault.Invalid. For an unknown flag, the error suggests the flag of
// fs with the most similar name, if there is one. The error for an invalid value has the same text as for a value from
// the environment or a file.
func FlagError(fs *pflag.FlagSet, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		return refused("--"+bad.GetFlag().Name, bad.GetValue(), bad.Unwrap())
	}
	e := &fault.Error{Code: fault.Invalid, Op: "settings.Flag", Msg: err.Error()}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := suggest.For(unknown.GetSpecifiedName(), names); near != "" {
			e.Hint = "did you mean --" + near + "?"
		}
	}
	return e
}

// refused returns the error for a value that a setting does not accept.
func refused(name, value string, why error) error {
	return &fault.Error{Code: fault.Invalid, Op: "settings", Msg: fmt.Sprintf("%s %q is refused", name, value),
		Hint: why.Error()}
}
