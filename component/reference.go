package component

import (
	"context"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Sources has what is needed to replace references and placeholders by their values. All fields are required.
type Sources struct {
	Placeholders Placeholders
	// Env looks up an environment variable.
	Env func(name string) (string, bool)
	// Secret reads one key of a secret in the named store. If the store, the secret or the key does not exist, the
	// error says which. The error never contains a value.
	Secret func(ctx context.Context, store string, ref SecretRef) (string, error)
}

// EnvKeys is the name of an environment variable that limits which variables envRef may read. Its value lists the names
// of the allowed variables, separated by spaces or commas. If this variable is not set, there is no such limit.
const EnvKeys = "DAPR_ENV_KEYS"

// Resolve replaces references and placeholders by their values. The error has one of these codes:
//
//   - fault.NotFound: an environment variable is not set
//   - fault.Denied: an envRef names a variable that components must not read
//   - fault.Invalid: a reference is malformed, the component names no secret store, or a placeholder has no value
//   - the code of the error from Sources.Secret: a secret cannot be read
//
// Every error names file, line and component, and never contains a value.
func (s *Spec) Resolve(ctx context.Context, from Sources) (Metadata, error) {
	out := make(Metadata, 0, len(s.Metadata))
	for _, item := range s.Metadata {
		p := Property{Name: item.Name, Pos: item.Pos}
		var err error
		switch {
		case item.Secret != nil:
			p.Sensitive = true
			p.Value, err = s.secret(ctx, from, *item.Secret)
		case item.Env != "":
			p.Sensitive = true
			p.Value, err = envValue(item.Env, from.Env)
		default:
			p.Bare = item.Bare
			p.Value, err = from.Placeholders.Replace(item.Value)
		}
		if err != nil {
			return nil, s.itemError(item, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// Unresolved returns the metadata as written in the file, for checks that do not open the component. The field
// Unresolved of a property is true if its value has references or placeholders.
func (s *Spec) Unresolved() Metadata {
	out := make(Metadata, 0, len(s.Metadata))
	for _, item := range s.Metadata {
		ref := item.Secret != nil || item.Env != ""
		open := ref || hasPlaceholder(item.Value)
		out = append(out, Property{Name: item.Name, Value: item.Value, Bare: item.Bare, Pos: item.Pos, Sensitive: ref,
			Unresolved: open})
	}
	return out
}

// CheckSecretStore checks that a component with a secretKeyRef names a secret store, and that find returns no error for
// this store. It reads no secret. The error names file, line and component.
func (s *Spec) CheckSecretStore(find func(store string) error) error {
	for _, item := range s.Metadata {
		if item.Secret == nil {
			continue
		}
		err := s.hasSecretStore()
		if err == nil {
			err = find(s.SecretStore)
		}
		if err != nil {
			return s.itemError(item, err)
		}
	}
	return nil
}

func (s *Spec) hasSecretStore() error {
	if s.SecretStore != "" {
		return nil
	}
	return &fault.Error{Code: fault.Invalid, Op: "component.Resolve",
		Msg:  "secretKeyRef is used but the component names no secret store",
		Hint: "set auth.secretStore"}
}

func (s *Spec) secret(ctx context.Context, from Sources, ref SecretRef) (string, error) {
	if err := s.hasSecretStore(); err != nil {
		return "", err
	}
	return from.Secret(ctx, s.SecretStore, ref)
}

func (s *Spec) itemError(item Item, err error) error {
	msg := "component " + s.Name + ": metadata " + item.Name
	if where := item.Pos.String(); where != "" {
		msg = where + ": " + msg
	}
	return &fault.Error{Code: fault.CodeOf(err), Op: "component.Resolve", Msg: msg, Key: s.Name, Err: err}
}

// ReservedVariable reports whether an environment variable contains a token or a setting of this process. Components
// and applications must not read such a variable.
func ReservedVariable(name string) bool {
	upper := strings.ToUpper(name)
	return upper == "APP_API_TOKEN" || strings.HasPrefix(upper, "DAPR_") || strings.HasPrefix(upper, "QUORATE_")
}

// envValue returns the value of an environment variable for envRef. It returns an error if the variable is not set, is
// reserved (see ReservedVariable), or is not allowed by EnvKeys.
func envValue(name string, lookup func(string) (string, bool)) (string, error) {
	const op = "component.Resolve"
	upper := strings.ToUpper(name)
	switch {
	case strings.ContainsAny(name, " \t\r\n="):
		return "", &fault.Error{Code: fault.Invalid, Op: op, Msg: "envRef is not the name of an environment variable"}
	case ReservedVariable(name):
		return "", &fault.Error{Code: fault.Denied, Op: op, Msg: "envRef may not read " + name,
			Hint: "it belongs to the runtime; use another variable"}
	}
	if allowed, limited := lookup(EnvKeys); limited && !listed(allowed, upper) {
		return "", &fault.Error{Code: fault.Denied, Op: op, Msg: "envRef may not read " + name, Hint: "add it to " +
			EnvKeys}
	}
	value, ok := lookup(name)
	if !ok {
		return "", &fault.Error{Code: fault.NotFound, Op: op, Msg: "the environment variable " + name + " is not set"}
	}
	return value, nil
}

func listed(list, upper string) bool {
	split := func(r rune) bool { return r == ' ' || r == ',' }
	for _, name := range strings.FieldsFunc(list, split) {
		if strings.ToUpper(name) == upper {
			return true
		}
	}
	return false
}
