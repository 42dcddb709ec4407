package settings

import (
	"errors"
	"slices"

	"github.com/spf13/pflag"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// Input is everything that a configuration is read from.
type Input struct {
	Flags      *pflag.FlagSet // parsed, and bound with Bind; nil = no flags
	Getenv     func(name string) string
	ReadFile   func(name string) ([]byte, error)
	StateDir   string // base of the default data directory; empty = unknown
	RuntimeDir string // directory for sockets
	Host       string // host name; empty = unknown
	Version    string // version of the program
	Command    []string
}

// Resolve determines the value of every setting, and returns the configuration without validating it. A flag overrides
// the environment, the environment overrides the file, and the file overrides the default. The error joins all
// problems. Each of them is a fault.Invalid that names the source of the value. Resolve may be called only once.
func (s *Set) Resolve(in Input) (node.Config, error) {
	var errs []error
	for _, st := range s.settings {
		errs = append(errs, st.settle(in))
	}
	if s.files.settings != "" {
		errs = append(errs, s.readFile(in)...)
	}
	if s.files.tokens != "" {
		errs = append(errs, s.readTokens(in))
	}
	c := &s.config
	c.Version, c.App.Command = in.Version, in.Command
	c.Cluster.Host = in.Host
	c.Data.StateDir, c.Data.RuntimeDir = in.StateDir, in.RuntimeDir
	*c = c.WithDefaults()
	if s.isDefault(consoleSetting) {
		c.Console.On = c.Local()
	}
	return *c, errors.Join(errs...)
}

// isDefault reports whether a setting has its default value because no flag, variable or file has set it.
func (s *Set) isDefault(name string) bool {
	return slices.ContainsFunc(s.settings, func(one *Setting) bool {
		return one.Name == name && (one.source == Source{} || one.source.Kind == "default")
	})
}

// settle sets a setting from the environment, unless its flag was given. An empty environment variable counts as not
// set. The flags must have been parsed.
func (s *Setting) settle(in Input) error {
	if in.Flags != nil && !s.noFlag && in.Flags.Changed(s.Name) {
		s.source = Source{Kind: "flag", Where: s.Flag()}
		return nil
	}
	for _, name := range s.Env {
		text := in.Getenv(name)
		if text == "" {
			continue
		}
		s.source = Source{Kind: "env", Where: name}
		if err := s.value.set(text); err != nil {
			return refused(name, text, err)
		}
		return nil
	}
	return nil
}

// readTokens adds the tokens of the API token file to the tokens from the environment. The file has one token per
// line. Empty lines and lines that begin with # are ignored. readTokens returns fault.Invalid if the file cannot be
// read or has no token.
func (s *Set) readTokens(in Input) error {
	text, err := in.ReadFile(s.files.tokens)
	if err != nil {
		return &fault.Error{Code: fault.Invalid, Op: "settings.Tokens",
			Msg: "the file of --api-token-file cannot be read", Err: err, Key: s.files.tokens}
	}
	tokens := node.ParseTokens(text)
	s.config.Security.APITokens = append(s.config.Security.APITokens, tokens...)
	s.config.Security.APITokenFile, s.config.Security.FileTokens = s.files.tokens, len(tokens)
	if len(tokens) == 0 {
		return &fault.Error{Code: fault.Invalid, Op: "settings.Tokens",
			Msg: "the file of --api-token-file holds no token: " + s.files.tokens, Hint: "put one token on each line",
			Key: s.files.tokens}
	}
	return nil
}
