package apitest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// JobStore keeps jobs in memory and never runs them.
type JobStore struct {
	mu   sync.Mutex
	jobs map[string]api.Job
}

// PutJob implements api.JobStore.
func (s *JobStore) PutJob(_ context.Context, _ api.App, j *api.Job, overwrite bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(strings.Fields(j.Schedule)); j.Schedule != "" && n != 6 && j.Schedule[0] != '@' {
		return fault.New(fault.Invalid, "apitest", "schedule: cannot be read")
	}
	if j.DueTime == "soon" {
		return fault.New(fault.Invalid, "apitest", "dueTime: cannot be read")
	}
	if _, found := s.jobs[j.Name]; found && !overwrite {
		return fault.New(fault.Conflict, "apitest", "there is one with that name")
	}
	if s.jobs == nil {
		s.jobs = map[string]api.Job{}
	}
	s.jobs[j.Name] = *j
	return nil
}

// Job implements api.JobStore.
func (s *JobStore) Job(_ context.Context, _ api.App, name string) (api.Job, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, found := s.jobs[name]
	return j, found, nil
}

// Jobs implements api.JobStore.
func (s *JobStore) Jobs(_ context.Context, _ api.App, prefix, after string, limit int) ([]api.Job, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []api.Job
	for name, j := range s.jobs {
		if strings.HasPrefix(name, prefix) && name > after {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b api.Job) int { return strings.Compare(a.Name, b.Name) })
	return out[:min(limit, len(out))], len(out) > limit, nil
}

// RemoveJobs implements api.JobStore.
func (s *JobStore) RemoveJobs(_ context.Context, _ api.App, prefix string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.jobs, func(name string, _ api.Job) bool { return strings.HasPrefix(name, prefix) })
	return nil
}

// RemoveJob implements api.JobStore.
func (s *JobStore) RemoveJob(_ context.Context, _ api.App, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.jobs, name)
	return nil
}
