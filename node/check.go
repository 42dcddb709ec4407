package node

import (
	"context"
	"errors"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/components"
)

// Check reads the component files of c without starting anything. err has all problems that would prevent the start
// of a node, and warnings has all others. env looks up environment variables.
func Check(_ context.Context, c Config, env func(name string) (string, bool)) (warnings []string, err error) {
	c = c.WithDefaults()
	plan, err := components.Read(c.sources(Deps{Env: env}))
	errs := loader.Each(err)
	if plan != nil {
		for _, w := range plan.Warnings {
			warnings = append(warnings, w.String())
		}
		r, wrong := calls.ReadRules(plan, c.trust())
		for _, w := range r.Unused {
			warnings = append(warnings, w.String())
		}
		errs = append(errs, loader.Each(wrong)...)
	}
	return warnings, errors.Join(errs...)
}
