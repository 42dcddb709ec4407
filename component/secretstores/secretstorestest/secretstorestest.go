// Package secretstorestest is the conformance suite for secret stores. A store that passes it fulfils the contract of
// component/secretstores. All goroutines of the suite end with the test that started them. The package owns the tests,
// not the stores.
package secretstorestest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
)

// Options describe the content of the store under test.
type Options struct {
	// Secrets is everything in the store, as Bulk must return it. At least two secrets.
	Secrets map[string]map[string]string
	// Absent is a name without a secret.
	Absent string
	// Metadata is passed with every request; may be nil.
	Metadata map[string]string
	// Twins are other spellings of the names of secrets. The store must refuse them, because the scopes of a store
	// would not match them.
	Twins []string
}

// Run runs the suite. It calls open to get a new store for each test, and closes the store after the test.
func Run(t *testing.T, open func(t *testing.T) secretstores.Store, o Options) {
	t.Helper()
	if len(o.Secrets) < 2 {
		t.Fatal("the suite needs a store with two secrets or more")
	}
	for name, test := range map[string]func(*suite){
		"a secret is read as it is":                            (*suite).get,
		"all secrets are read in one call":                     (*suite).bulk,
		"an absent secret is not found and named":              (*suite).absent,
		"names that could be something else are not served":    (*suite).oddNames,
		"a secret has one name":                                (*suite).twins,
		"answers belong to the caller":                         (*suite).copies,
		"calls may run at the same time":                       (*suite).concurrent,
		"a call ends with its context":                         (*suite).cancelled,
		"unknown metadata changes nothing":                     (*suite).unknownMetadata,
		"several keys are announced":                           (*suite).features,
		"closing twice is closing once, and nothing is served": (*suite).close,
	} {
		t.Run(name, func(t *testing.T) {
			s := &suite{T: t, store: open(t), Options: o}
			t.Cleanup(func() {
				if err := s.store.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			test(s)
		})
	}
}

// suite is one running test.
type suite struct {
	*testing.T
	Options
	store secretstores.Store
}

// ctx bounds one call, so that a store that hangs fails its test and not the whole run.
func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	s.Cleanup(cancel)
	return ctx
}

func (s *suite) get() {
	for name, want := range s.Secrets {
		got, err := s.store.Get(s.ctx(), name, s.Metadata)
		if err != nil {
			s.Fatalf("Get(%q): %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			s.Errorf("Get(%q) (-want +got)\n%s", name, diff)
		}
	}
}

func (s *suite) bulk() {
	got, err := s.store.Bulk(s.ctx(), s.Metadata)
	if err != nil {
		s.Fatal(err)
	}
	if diff := cmp.Diff(s.Secrets, got); diff != "" {
		s.Errorf("(-want +got)\n%s", diff)
	}
}

func (s *suite) absent() {
	got, err := s.store.Get(s.ctx(), s.Absent, s.Metadata)
	if !fault.Is(err, fault.NotFound) || got != nil {
		s.Fatalf("Get(%q) = %v, %v; want %s", s.Absent, got, err, fault.NotFound)
	}
	if fault.KeyOf(err) != s.Absent {
		s.Errorf("the error is about %q, want %q: %v", fault.KeyOf(err), s.Absent, err)
	}
}

// oddNames tests names that a store could misread as a path, a query or a pattern.
func (s *suite) oddNames() {
	known := ""
	for name := range s.Secrets {
		known = name
	}
	for _, name := range []string{
		"", ".", "..", "../" + known, "./" + known, "/" + known, known + "/", known + "/..", known + "?version=1",
		known + "%2e%2e", "%2e%2e", known + "\x00", "a b\r\nX: y", "*", known + "#x", strings.Repeat("n", 9000),
	} {
		if _, ok := s.Secrets[name]; ok {
			continue
		}
		got, err := s.store.Get(s.ctx(), name, s.Metadata)
		if code := fault.CodeOf(err); code != fault.NotFound && code != fault.Invalid || got != nil {
			s.Errorf("Get(%.60q) = %v, %v; want %s or %s", name, got, err, fault.NotFound, fault.Invalid)
		}
	}
}

func (s *suite) twins() {
	for _, name := range s.Twins {
		got, err := s.store.Get(s.ctx(), name, s.Metadata)
		if code := fault.CodeOf(err); code != fault.NotFound && code != fault.Invalid || got != nil {
			s.Errorf("Get(%q) = %v, %v; want %s or %s", name, got, err, fault.NotFound, fault.Invalid)
		}
	}
	folder, ok := s.store.(secretstores.Folder)
	if !ok {
		return
	}
	for name := range s.Secrets {
		for _, spelling := range []string{strings.ToUpper(name), strings.ToLower(name)} {
			if folder.Fold(spelling) != folder.Fold(name) {
				s.Errorf("Fold(%q) and Fold(%q) differ", spelling, name)
			}
		}
	}
}

func (s *suite) copies() {
	for range 2 {
		all, err := s.store.Bulk(s.ctx(), s.Metadata)
		if err != nil {
			s.Fatal(err)
		}
		if diff := cmp.Diff(s.Secrets, all); diff != "" {
			s.Fatalf("the store was changed through an answer\n%s", diff)
		}
		for name := range s.Secrets {
			one, err := s.store.Get(s.ctx(), name, s.Metadata)
			if err != nil {
				s.Fatal(err)
			}
			spoil(one)
			spoil(all[name])
			delete(all, name)
		}
	}
}

func spoil(secret map[string]string) {
	for key := range secret {
		secret[key] = "spoilt"
	}
	secret["more"] = "spoilt"
}

func (s *suite) concurrent() {
	names := []string{}
	for name := range s.Secrets {
		names = append(names, name)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := names[i%len(names)]
			if i%4 == 3 {
				got, err := s.store.Bulk(s.ctx(), s.Metadata)
				if diff := cmp.Diff(s.Secrets, got); err != nil || diff != "" {
					s.Errorf("Bulk: %v\n%s", err, diff)
				}
				return
			}
			got, err := s.store.Get(s.ctx(), name, s.Metadata)
			if diff := cmp.Diff(s.Secrets[name], got); err != nil || diff != "" {
				s.Errorf("Get(%q): %v\n%s", name, err, diff)
			}
		})
	}
	wg.Wait()
}

func (s *suite) cancelled() {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	for name := range s.Secrets {
		if got, err := s.store.Get(ctx, name, s.Metadata); !fault.Is(err, fault.Timeout) || got != nil {
			s.Errorf("Get with a context that has ended = %v, %v; want %s", got, err, fault.Timeout)
		}
	}
	if got, err := s.store.Bulk(ctx, s.Metadata); !fault.Is(err, fault.Timeout) || got != nil {
		s.Errorf("Bulk with a context that has ended = %v, %v; want %s", got, err, fault.Timeout)
	}
}

func (s *suite) unknownMetadata() {
	metadata := map[string]string{"suite_unknown": "x"}
	for name, value := range s.Metadata {
		metadata[name] = value
	}
	for name, want := range s.Secrets {
		got, err := s.store.Get(s.ctx(), name, metadata)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			s.Errorf("Get(%q): %v\n%s", name, err, diff)
		}
	}
}

// features checks the keys of secrets. If the store does not report FeatureMultipleKeyValues, each secret must have
// exactly one key, and this key must be the name of the secret.
func (s *suite) features() {
	f, ok := s.store.(secretstores.Featurer)
	if ok && slices.Contains(f.Features(), secretstores.FeatureMultipleKeyValues) {
		return
	}
	for name, secret := range s.Secrets {
		if _, ok := secret[name]; !ok || len(secret) != 1 {
			s.Errorf("secret %q has the keys %v, but the store does not announce %s", name, keys(secret),
				secretstores.FeatureMultipleKeyValues)
		}
	}
}

func keys(secret map[string]string) string {
	var out []string
	for key := range secret {
		out = append(out, key)
	}
	return fmt.Sprint(out)
}

func (s *suite) close() {
	for range 2 {
		if err := s.store.Close(); err != nil {
			s.Fatalf("Close: %v", err)
		}
	}
	for name := range s.Secrets {
		if got, err := s.store.Get(s.ctx(), name, s.Metadata); !fault.Is(err, fault.Unavailable) || got != nil {
			s.Errorf("Get of a closed store = %v, %v; want %s", got, err, fault.Unavailable)
		}
	}
	if got, err := s.store.Bulk(s.ctx(), s.Metadata); !fault.Is(err, fault.Unavailable) || got != nil {
		s.Errorf("Bulk of a closed store = %v, %v; want %s", got, err, fault.Unavailable)
	}
}
