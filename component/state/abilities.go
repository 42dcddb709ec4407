package state

import "slices"

// Abilities are the optional interfaces of a store. If the store does not implement an interface, the field is nil.
// Pinger is not among them, because wrappers do not implement it.
type Abilities struct {
	Transactor Transactor
	BulkGetter BulkGetter
	Lister     Lister
	Featurer   Featurer
	Watcher    Watcher
}

// AbilitiesOf returns the optional interfaces of a store. Do not use a type assertion instead: it fails if s is a
// wrapper, because a wrapper has only the methods of Store.
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
// method. AbilitiesOf returns the optional interfaces.
type wrapped struct {
	Store
	abilities Abilities
}

// wrapper is a Store that implements all optional interfaces. The function wrap hides those interfaces that the wrapped
// store lacks.
type wrapper interface {
	Store
	Transactor
	BulkGetter
	Lister
	Featurer
	Watcher
}

// wrap returns a Store with the methods of w. Its abilities are those of w, except the ones that are nil in below, the
// abilities of the wrapped store.
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

// FeaturesOf returns the features that a store reports. If the store is not a Featurer, FeaturesOf derives the features
// from the optional interfaces of the store. A store that can list keys also has FeatureKeysLike.
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
