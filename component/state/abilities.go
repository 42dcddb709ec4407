package state

import "slices"

// Abilities are the optional interfaces of a store, except Pinger, which wrappers do not implement. A field is nil if
// the store does not implement that interface.
type Abilities struct {
	Transactor Transactor
	BulkGetter BulkGetter
	Lister     Lister
	Featurer   Featurer
	Watcher    Watcher
}

// AbilitiesOf returns the abilities of a store. Use it instead of a type assertion, which fails for a store inside a
// wrapper.
func AbilitiesOf(s Store) Abilities {
	if w, ok := s.(*wrapped); ok {
		return w.abilities
	}
	var a Abilities
	a.Transactor, _ = s.(Transactor)
	a.BulkGetter, _ = s.(BulkGetter)
	a.Lister, _ = s.(Lister)
	a.Featurer, _ = s.(Featurer)
	a.Watcher, _ = s.(Watcher)
	return a
}

// wrapped is a wrapper around a store. It has only the methods of Store, so a type assertion never finds an optional
// method that the wrapped store lacks. Callers get the optional interfaces from AbilitiesOf.
type wrapped struct {
	Store
	abilities Abilities
}

// wrapper implements every ability, even those that the store below it lacks. wrap hides the ones that the store lacks.
type wrapper interface {
	Store
	Transactor
	BulkGetter
	Lister
	Featurer
	Watcher
}

// wrap returns a Store with those abilities of w that the store below has.
func wrap(w wrapper, below Abilities) Store {
	var a Abilities
	if below.Transactor != nil {
		a.Transactor = w
	}
	if below.BulkGetter != nil {
		a.BulkGetter = w
	}
	if below.Lister != nil {
		a.Lister = w
	}
	if below.Featurer != nil {
		a.Featurer = w
	}
	if below.Watcher != nil {
		a.Watcher = w
	}
	return &wrapped{w, a}
}

// FeaturesOf returns the features of a store: those that it reports, and those that follow from its optional
// interfaces.
func FeaturesOf(s Store) []Feature {
	a := AbilitiesOf(s)
	var features []Feature
	if a.Featurer != nil {
		features = slices.Clone(a.Featurer.Features())
	} else {
		features = append(features, FeatureETag)
		if a.Transactor != nil {
			features = append(features, FeatureTransactional)
		}
	}
	if a.Lister != nil {
		features = append(features, FeatureKeysLike)
	}
	return features
}
