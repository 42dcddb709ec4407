// Package settings brings flags, environment and a YAML file together into one
// node.Config, and remembers where each value came from.
//
// It owns the names of the settings, their precedence (flag, environment, file, default)
// and their text form. It must never decide whether a configuration makes sense: that is
// node.Config.Validate. It reads the environment and files only through the functions it
// is handed, and has no goroutines.
package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/nearest"
	"github.com/quorate/quorate/node"
)

// Group is the heading under which settings are listed.
type Group string

// The groups, in the order they are listed.
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

// Groups lists every Group in order.
func Groups() []Group {
	return []Group{Application, API, Components, Data, Cluster, Security, Metrics, Process}
}

// Setting is one thing a person can choose.
type Setting struct {
	Name    string   // of the flag, without dashes
	Aliases []string // further names of the flag
	Env     []string // environment variables; the first that is set and not empty counts
	Key     string   // in the file; empty = not there
	Group   Group
	Usage   string // one phrase
	Default string // as text; empty = none

	noFlag bool // it is a secret: a command line is public
	value  *value
	source Source
	texts  []string // accepted from the file, in order
}

// Flag returns the flag with its dashes, or nothing for a setting that has none.
func (s *Setting) Flag() string {
	if s.noFlag {
		return ""
	}
	return "--" + s.Name
}

// Words are the values a setting can have, where they form a closed set.
func (s *Setting) Words() []string { return s.value.words }

// Kind names the kind of value, as a word for help: "port", "duration".
func (s *Setting) Kind() string { return s.value.kind }

// Value is the value in effect, as text; of a secret only that there is one.
func (s *Setting) Value() string { return s.value.get() }

// Source says where the value in effect came from.
func (s *Setting) Source() Source { return s.source }

// Source is where a value came from.
type Source struct {
	Kind  string `json:"kind"`            // flag, env, file or default
	Where string `json:"where,omitempty"` // name of the flag or variable, or file and line
}

// String returns the source as one phrase.
func (s Source) String() string { return strings.TrimSpace(s.Kind + " " + s.Where) }

// files are the files that are read here rather than by the node.
type files struct {
	settings string
	tokens   string
}

// Set is every setting of a node, bound to one configuration. It is for one goroutine.
type Set struct {
	config   node.Config
	files    files
	settings []*Setting
	ignored  []string // flags given that have no meaning here
}

// New returns the settings, all unset.
func New() *Set {
	s := &Set{}
	s.settings = table(&s.config, &s.files)
	for _, st := range s.settings {
		st.complete()
		st.source = Source{Kind: "default"}
	}
	return s
}

// complete derives what follows from the name of a setting.
func (s *Setting) complete() {
	if !s.noFlag {
		s.Env = append([]string{"QUORATE_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))}, s.Env...)
		s.Key = camel(s.Name)
	}
	if s.Name == "config-file" {
		s.Key = ""
	}
}

// camel turns "http-port" into "httpPort".
func camel(name string) string {
	words := strings.Split(name, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// All lists the settings by group, in the order they are best read.
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

// Bind adds a flag for each setting to fs, and the flags of the existing runtime that
// are accepted without a meaning. Aliases work but are hidden.
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

// BindOnly adds flags for the named settings alone, for commands that need no others.
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

// Warnings are things to tell the person who started the node; at most one line per kind.
func (s *Set) Warnings() []string {
	if len(s.ignored) == 0 {
		return nil
	}
	names := slices.Compact(slices.Sorted(slices.Values(s.ignored)))
	return []string{"flags without a meaning here are ignored: --" + strings.Join(names, ", --")}
}

// FlagError gives an error of package pflag the words this program uses for every source.
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
		if near := nearest.To(unknown.GetSpecifiedName(), names); near != "" {
			e.Hint = "did you mean --" + near + "?"
		}
	}
	return e
}

// refused is the error for a value that a setting cannot take.
func refused(name, value string, why error) error {
	return &fault.Error{Code: fault.Invalid, Op: "settings", Msg: fmt.Sprintf("%s %q is refused", name, value), Hint: why.Error()}
}
