package component

import (
	"context"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Sources are where the values of metadata come from. Every field is required.
type Sources struct {
	Placeholders Placeholders
	// Env looks up an environment variable.
	Env func(name string) (string, bool)
	// Secret reads one key of a secret of the named store. Its error says which of the
	// three is missing, without a value.
	Secret func(ctx context.Context, store string, ref SecretRef) (string, error)
}

// EnvKeys is the environment variable that, when it is set, lists the only variables an
// envRef may name, separated by spaces or commas.
const EnvKeys = "DAPR_ENV_KEYS"

// Resolve replaces references and placeholders by what they stand for. The error keeps
// the code of a failed look-up, is fault.NotFound for a variable that is not set and
// fault.Denied for one that may not be read; it names file, line and component, and
// never a value.
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

// Unresolved returns the metadata as far as the file alone tells it, for a check that
// opens nothing: references are marked Unresolved and placeholders stay as they are.
func (s *Spec) Unresolved() Metadata {
	out := make(Metadata, 0, len(s.Metadata))
	for _, item := range s.Metadata {
		ref := item.Secret != nil || item.Env != ""
		open := ref || hasPlaceholder(item.Value)
		out = append(out, Property{Name: item.Name, Value: item.Value, Bare: item.Bare, Pos: item.Pos, Sensitive: ref, Unresolved: open})
	}
	return out
}

func (s *Spec) secret(ctx context.Context, from Sources, ref SecretRef) (string, error) {
	if s.SecretStore == "" {
		return "", &fault.Error{Code: fault.Invalid, Op: "component.Resolve", Msg: "secretKeyRef is used but the component names no secret store",
			Hint: "set auth.secretStore"}
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

// ReservedVariable reports whether an environment variable carries this process's own
// tokens or settings. No component and no application may read it.
func ReservedVariable(name string) bool {
	upper := strings.ToUpper(name)
	return upper == "APP_API_TOKEN" || strings.HasPrefix(upper, "DAPR_") || strings.HasPrefix(upper, "QUORATE_")
}

// envValue reads a variable unless it is one that carries this process's own tokens and
// settings: a component file must not be a way to read those.
func envValue(name string, lookup func(string) (string, bool)) (string, error) {
	const op = "component.Resolve"
	upper := strings.ToUpper(name)
	switch {
	case strings.ContainsAny(name, " \t\r\n="):
		return "", &fault.Error{Code: fault.Invalid, Op: op, Msg: "envRef is not the name of an environment variable"}
	case ReservedVariable(name):
		return "", &fault.Error{Code: fault.Denied, Op: op, Msg: "envRef may not read " + name, Hint: "it belongs to the runtime; use another variable"}
	}
	if allowed, limited := lookup(EnvKeys); limited && !listed(allowed, upper) {
		return "", &fault.Error{Code: fault.Denied, Op: op, Msg: "envRef may not read " + name, Hint: "add it to " + EnvKeys}
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
