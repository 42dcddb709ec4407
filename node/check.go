package node

import (
	"context"
	"errors"
	"log/slog"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Check reads the component files of c without starting anything. What a start would
// refuse because of the files alone is the error, made by errors.Join of one for each
// thing that is wrong; oddities are warnings. env looks up environment variables.
func Check(_ context.Context, c Config, env func(name string) (string, bool)) (warnings []string, err error) {
	o := loaderOptions(c.WithDefaults(), env, func(context.Context, loader.StateConfig) (state.Store, error) {
		return nil, fault.New(fault.Internal, "node.Check", "a check opens no store")
	})
	o.Logger = slog.New(slog.DiscardHandler)
	if o.Factories, err = builtin.Factories(o.Factories); err != nil {
		return nil, err
	}
	plan, err := loader.Read(o)
	errs := loader.Each(err)
	if plan != nil {
		for _, w := range plan.Warnings {
			warnings = append(warnings, w.String())
		}
		errs = append(errs, unsupported(plan)...)
		r, wrong := readRules(c.WithDefaults(), plan)
		for _, w := range r.unused {
			warnings = append(warnings, w.String())
		}
		errs = append(errs, loader.Each(wrong)...)
	}
	return warnings, errors.Join(errs...)
}

// documents is what a plan and a set have in common.
type documents interface {
	Documents(kind component.Kind) []component.Document
}
