package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
)

// Each operation on one job returns the error of Dapr if the name is empty.
func TestJobs_RefuseAnEmptyName(t *testing.T) {
	jobs := api.NewJobs(api.App{ID: "app"}, &apitest.JobStore{})
	for _, name := range []string{"", " ", "\t "} {
		_, get := jobs.Get(t.Context(), name)
		for operation, err := range map[string]error{"get": get, "delete": jobs.Delete(t.Context(), name),
			"schedule": jobs.Schedule(t.Context(), &api.Job{Name: name, Schedule: "@daily"}, true)} {
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != api.Malformed || e.Code != api.CodeJobNameEmpty {
				t.Errorf("%s %q: %v", operation, name, err)
			}
		}
	}
}

func TestJobs_RefuseNamesInEveryOperation(t *testing.T) {
	jobs := api.NewJobs(api.App{ID: "app"}, &apitest.JobStore{})
	for _, name := range []string{"\xff\xfe", "a\x00", "..", "a/b", strings.Repeat("x", api.MaxJobName+1)} {
		_, get := jobs.Get(t.Context(), name)
		for operation, err := range map[string]error{"get": get, "delete": jobs.Delete(t.Context(), name),
			"schedule": jobs.Schedule(t.Context(), &api.Job{Name: name, Schedule: "@daily"}, true)} {
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != api.Malformed || e.Code != api.CodeJobName {
				t.Errorf("%s %q: %v", operation, name, err)
			}
		}
	}
}
