package loader

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Changes are the differences between two sets.
type Changes struct {
	Added, Changed, Removed []string // names of components and endpoints, with their block
	Documents               bool     // a Configuration or Resiliency document changed
	Subscriptions           bool     // a Subscription document changed
	Failed                  []error  // errors of components that keep their previous state: open, or absent
	Ignored                 []error  // errors of components with ignoreErrors that are not in the new set

	retired []*closer
}

// Any reports whether anything changed.
func (c Changes) Any() bool {
	return len(c.Added)+len(c.Changed)+len(c.Removed) > 0 || c.Documents || c.Subscriptions
}

// Close closes the components that are only in the previous set. Call it only when no request uses these components any
// more.
func (c Changes) Close() error {
	var errs []error
	for _, one := range slices.Backward(c.retired) {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// Reload reads the files again and returns a new set of components. Unchanged components stay open and are in both
// sets. The previous set stays usable until Changes.Close.
//
// If a file is invalid, Reload returns an error and opens nothing. If a component fails to open, the new set keeps the
// component of the previous set, and Changes.Failed has the error. The exception is a component whose document has
// changed and sets ignoreErrors. This component is missing from the new set, and Changes.Ignored has its error.
func Reload(ctx context.Context, o Options, old *Set) (*Set, Changes, error) {
	o.keepDefault = true
	if o.DefaultState != nil && !old.hasDefault(o.DefaultState.Name) {
		o.DefaultState = nil // a running node does not get a store that no file declares
	}
	o.actors = old.actors
	plan, err := Read(o)
	if err != nil {
		return nil, Changes{}, err
	}
	p := &opening{options: o, set: newSet(plan), old: old}
	p.set.actors = old.actors
	if err := p.run(ctx, plan); err != nil {
		c := changes(p.set, old)
		return nil, Changes{}, joinClose(err, c.Close())
	}
	c := changes(old, p.set)
	c.Failed, c.Ignored = p.failures, p.set.ignored
	if c.Any() {
		plan.report(o.Logger)
	}
	return p.set, c, nil
}

// hasDefault reports whether the set has the default state store, which no file declares.
func (s *Set) hasDefault(name string) bool {
	e := s.entries[entryKey{blockState, name}]
	return e != nil && e.spec.Pos.File == ""
}

// has reports whether the set has a component with the same building block and name as u. If the set is nil, has
// returns false.
func (s *Set) has(u *unit) bool { return s != nil && s.entries[u.key()] != nil }

// hasUnchanged reports whether the set has the component u, opened from a document with the same content. The values of
// its references may differ.
func (s *Set) hasUnchanged(u *unit) bool {
	return s.has(u) && reflect.DeepEqual(content(s.entries[u.key()].spec), content(u.spec))
}

// content returns a copy of s without its positions in the file.
func content(s *component.Spec) component.Spec {
	c := *s
	c.Pos, c.TypePos = component.Pos{}, component.Pos{}
	c.Metadata = slices.Clone(c.Metadata)
	for i := range c.Metadata {
		c.Metadata[i].Pos = component.Pos{}
	}
	return c
}

// carry returns true if the new set keeps the component of the previous set. If it returns false, the caller must open
// the component.
//
// A component is kept if its configuration is unchanged. A component that would lose its data when it is closed is also
// kept; carry then also records an error, because the change needs a restart.
func (p *opening) carry(u *unit) bool {
	if !p.old.has(u) {
		return false
	}
	switch e := p.old.entries[u.key()]; {
	case e.digest == u.digest:
		p.takeOver(u)
		e.spec = u.spec
		return true
	case e.volatile:
		p.keep(u, u.failed(u.spec.Pos, &fault.Error{Code: fault.Invalid, Op: "loader.Reload",
			Msg: "the change takes effect with a restart of the node: the open component of type " + e.spec.Type +
				" would lose what it holds",
			Hint: "restart the node"}))
		return true
	}
	return false
}

// keep records a failure, and adds the component of the previous set to the new set. If the previous set has no such
// component, keep lists the component as failed.
func (p *opening) keep(u *unit, err error) {
	p.failures = append(p.failures, err)
	if p.old.has(u) {
		p.takeOver(u)
		return
	}
	p.set.statuses = append(p.set.statuses, statusOf(u.spec, component.Failed, fault.Text(err)))
}

func (p *opening) takeOver(u *unit) {
	e := p.old.entries[u.key()]
	p.set.entries[u.key()] = e
	p.set.closers = append(p.set.closers, e.closing)
	e.list(p.set, u)
}

// movesActors returns an error if a reload with the document of u would move the actor state to another store, because
// the actors would lose their state. There are two cases:
//   - u claims the actor state, but another store has it.
//   - u has the actor state, but no longer claims it, or has another type or version.
//
// Another version of the same type counts as another store, because it may use other tables.
func (p *opening) movesActors(u *unit) error {
	now := p.options.actors
	switch {
	case now == nil:
	case u.spec.Name != now.name && u.claimsActors():
		return u.failed(u.spec.Pos, p.actorsStay("if "+now.name+" is not to have it, restart the node; otherwise "+
			"remove "+state.MetadataActorStateStore+" here"))
	case u.spec.Name == now.name && (u.typ() != now.typ ||
		!component.SameVersion(u.spec.Version, now.version) || !u.claimsActors()):
		return u.failed(u.spec.Pos, p.actorsStay("restart the node, or keep the type "+now.typ+"/"+now.version+
			" and "+state.MetadataActorStateStore+`: "true"`))
	}
	return nil
}

func (p *opening) actorsStay(hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "loader.Reload", Hint: hint, Msg: "the store " +
		p.options.actors.name + " has the actor state, which cannot move to another store while the node runs"}
}

// keepActors keeps the store with the actor state if plan does not include it. This happens if no file declares the
// store any more, or if its document was rejected.
func (p *opening) keepActors(plan *Plan) {
	now := p.options.actors
	if now == nil || slices.ContainsFunc(plan.state, func(u *unit) bool { return u.spec.Name == now.name }) {
		return
	}
	e := p.old.entries[entryKey{blockState, now.name}]
	if e == nil {
		return
	}
	u, pos, hint := &unit{spec: e.spec}, component.Pos{}, "restart the node, or declare "+now.name+" again"
	rejects := func(c component.Status) bool { return c.Name == now.name && blockOf(c.Type) == blockState }
	if i := slices.IndexFunc(plan.rejected, rejects); i >= 0 {
		pos, hint = plan.rejected[i].Pos, "restart the node, or change the document: "+plan.rejected[i].Reason
		p.set.statuses = slices.DeleteFunc(p.set.statuses, rejects) // the kept store has a status of its own
	}
	p.keep(u, u.failed(pos, p.actorsStay(hint)))
}

// Compare returns the differences between two sets. Changes.Close then closes the components that are only in the old
// set.
func Compare(old, now *Set) Changes { return changes(old, now) }

// changes returns the differences between two sets.
func changes(old, now *Set) (c Changes) {
	for key, e := range now.entries {
		switch before := old.entries[key]; {
		case before == nil:
			c.Added = append(c.Added, key.String())
		case before != e:
			c.Changed = append(c.Changed, key.String())
		}
	}
	for key := range old.entries {
		if now.entries[key] == nil {
			c.Removed = append(c.Removed, key.String())
		}
	}
	for _, e := range now.endpoints {
		switch before, ok := old.endpoint(e.Name); {
		case !ok:
			c.Added = append(c.Added, "endpoint "+e.Name)
		case before != e:
			c.Changed = append(c.Changed, "endpoint "+e.Name)
		}
	}
	for _, e := range old.endpoints {
		if _, ok := now.endpoint(e.Name); !ok {
			c.Removed = append(c.Removed, "endpoint "+e.Name)
		}
	}
	slices.Sort(c.Added)
	slices.Sort(c.Changed)
	slices.Sort(c.Removed)
	for _, kind := range []component.Kind{component.KindConfiguration, component.KindResiliency} {
		c.Documents = c.Documents || !sameDocuments(old.documents[kind], now.documents[kind])
	}
	c.Subscriptions = !sameDocuments(old.documents[component.KindSubscription],
		now.documents[component.KindSubscription])
	for _, one := range old.closers {
		if !slices.Contains(now.closers, one) {
			c.retired = append(c.retired, one)
		}
	}
	return c
}

func sameDocuments(a, b []component.Document) bool {
	return slices.EqualFunc(a, b, func(x, y component.Document) bool {
		left, err := yaml.Marshal(x.Body)
		right, err2 := yaml.Marshal(y.Body)
		return err == nil && err2 == nil && bytes.Equal(left, right)
	})
}

func (k entryKey) String() string { return k.block + " " + k.name }

func (u *unit) key() entryKey { return entryKey{blockOf(u.spec.Type), u.spec.Name} }

// digestOf returns a hash of everything that affects how the component is opened, including the secrets in its
// metadata. A reload keeps the component if the hash is unchanged. The references in m must be resolved.
func (u *unit) digestOf(m component.Metadata) string {
	h := sha256.New()
	s := u.spec
	fmt.Fprintf(h, "%q %q %q %q %t\n", s.Type, s.Version, s.Scopes, s.SecretStore, u.actor)
	if u.scope != nil {
		fmt.Fprintf(h, "scope %t %q %q\n", u.scope.DenyDefault, u.scope.Allowed, u.scope.Denied)
	}
	for i, item := range s.Metadata {
		value := item.Value // not m[i].Value: a placeholder such as {uuid} has another value each time
		if m[i].Sensitive {
			value = m[i].Value
		}
		fmt.Fprintf(h, "%q %q\n", strings.ToLower(item.Name), value)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Fingerprint returns a string that changes when a file in paths is added, changed or removed. It uses the size, the
// modification time, the mode and the inode of each file, but not the contents.
func Fingerprint(paths []string) string {
	var b strings.Builder
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			if files, _, err = folder(path); err != nil {
				fmt.Fprintf(&b, "%s: %v\n", path, err)
			}
		}
		for _, file := range files {
			info, err := os.Stat(file)
			if err != nil {
				fmt.Fprintf(&b, "%s: %v\n", file, err)
				continue
			}
			fmt.Fprintf(&b, "%s %d %d %s %v\n", file, info.Size(), info.ModTime().UnixNano(), info.Mode(), inode(info))
		}
	}
	return b.String()
}
