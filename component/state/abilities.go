package state

// allAbilities is what a wrapper implements: everything, whether the store below it can or not.
type allAbilities interface {
	Store
	Transactor
	BulkGetter
	Lister
	Featurer
}

// expose hides those methods of w that like does not offer: callers find abilities by
// assertion, so a wrapper must not pretend to any. Go has no other way to drop a method
// than a type without it, hence one for each combination.
func expose(w allAbilities, like Store) Store {
	var set int
	if _, ok := like.(Transactor); ok {
		set |= 1
	}
	if _, ok := like.(BulkGetter); ok {
		set |= 2
	}
	if _, ok := like.(Lister); ok {
		set |= 4
	}
	if _, ok := like.(Featurer); ok {
		set |= 8
	}
	switch set {
	case 0:
		return struct{ Store }{w}
	case 1:
		return transactional{w, w}
	case 2:
		return bulk{w, w}
	case 3:
		return struct {
			transactional
			BulkGetter
		}{transactional{w, w}, w}
	case 4:
		return listing{w, w}
	case 5:
		return struct {
			transactional
			Lister
		}{transactional{w, w}, w}
	case 6:
		return struct {
			bulk
			Lister
		}{bulk{w, w}, w}
	case 7:
		return storing{transactional{w, w}, w, w}
	}
	return exposeFeatured(w, set&7)
}

type (
	transactional struct {
		Store
		Transactor
	}
	bulk struct {
		Store
		BulkGetter
	}
	listing struct {
		Store
		Lister
	}
	storing struct {
		transactional
		BulkGetter
		Lister
	}
)

// exposeFeatured is expose for stores that are Featurers.
func exposeFeatured(w allAbilities, set int) Store {
	switch set {
	case 0:
		return struct {
			Store
			Featurer
		}{w, w}
	case 1:
		return struct {
			transactional
			Featurer
		}{transactional{w, w}, w}
	case 2:
		return struct {
			bulk
			Featurer
		}{bulk{w, w}, w}
	case 3:
		return struct {
			transactional
			BulkGetter
			Featurer
		}{transactional{w, w}, w, w}
	case 4:
		return struct {
			listing
			Featurer
		}{listing{w, w}, w}
	case 5:
		return struct {
			transactional
			Lister
			Featurer
		}{transactional{w, w}, w, w}
	case 6:
		return struct {
			bulk
			Lister
			Featurer
		}{bulk{w, w}, w, w}
	default:
		return w
	}
}

// FeaturesOf returns what a store can do: what it says itself, or what its methods tell.
func FeaturesOf(s Store) []Feature {
	if f, ok := s.(Featurer); ok {
		return f.Features()
	}
	features := []Feature{FeatureETag}
	if _, ok := s.(Transactor); ok {
		features = append(features, FeatureTransactional)
	}
	return features
}
