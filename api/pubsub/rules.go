package pubsub

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"

	"github.com/quorate/quorate/internal/fault"
)

// Bounds of rules.
const (
	maxRules      = 100
	maxExpression = 4 << 10 // bytes
	maxDepth      = 50      // nesting of an expression
	maxCost       = 200_000 // steps of an evaluation, as CEL counts them
	eventVariable = "event"
)

// rule sends matching events to a path of the application.
type rule struct {
	match   string
	path    string
	program cel.Program // nil = every event matches
}

// compile compiles a rule. match is the expression; an empty one matches every event. An expression with unknown names
// compiles, and fails only when it is evaluated.
func compile(match, path string) (rule, error) {
	r := rule{match: match, path: path}
	if strings.TrimSpace(match) == "" {
		return r, nil
	}
	if len(match) > maxExpression {
		return r, invalidRule(match, fmt.Errorf("it has %d bytes; the limit is %d", len(match), maxExpression))
	}
	env, err := cel.NewEnv(cel.Variable(eventVariable, cel.DynType), cel.ParserRecursionLimit(maxDepth),
		cel.ParserExpressionSizeLimit(maxExpression))
	if err != nil {
		return r, invalidRule(match, err)
	}
	parsed, issues := env.Parse(match)
	if issues.Err() != nil {
		return r, invalidRule(match, issues.Err())
	}
	if env, err = env.Extend(unknownNames(parsed)...); err != nil {
		return r, invalidRule(match, err)
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return r, invalidRule(match, issues.Err())
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return r, invalidRule(match, fmt.Errorf("its result is %s, not a boolean", t))
	}
	r.program, err = env.Program(checked, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return r, invalidRule(match, err)
	}
	return r, nil
}

// unknownNames returns a declaration for each name in an expression, except for the name event.
func unknownNames(parsed *cel.Ast) (out []cel.EnvOption) {
	seen := map[string]bool{eventVariable: true}
	celast.PostOrderVisit(parsed.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		if e.Kind() != celast.IdentKind || seen[e.AsIdent()] {
			return
		}
		seen[e.AsIdent()] = true
		out = append(out, cel.Variable(e.AsIdent(), cel.DynType))
	}))
	return out
}

func invalidRule(match string, err error) error {
	return &fault.Error{Code: fault.Invalid, Op: "pubsub.compile", Err: err,
		Msg: "the rule " + fault.Shorten(match, 200) + " is not valid"}
}

// matches reports whether an event matches the rule.
func (r *rule) matches(ctx context.Context, event any) (bool, error) {
	if r.program == nil {
		return true, nil
	}
	out, _, err := r.program.ContextEval(ctx, map[string]any{eventVariable: event})
	if err != nil {
		return false, &fault.Error{Code: fault.Invalid, Op: "pubsub.matches", Err: err,
			Msg: "the rule " + fault.Shorten(r.match, 200) + " could not be evaluated"}
	}
	yes, ok := out.Value().(bool)
	if !ok {
		return false, fault.New(fault.Invalid, "pubsub.matches",
			"the rule "+fault.Shorten(r.match, 200)+" has a result that is not a boolean")
	}
	return yes, nil
}
