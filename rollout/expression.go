// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"

	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/noderefit/noderefit/api"
)

// Variables of a gate's expression.
const (
	varObject  = "object"
	varObjects = "objects"
	varNode    = "node"
	varNodes   = "nodes"
)

const (
	// interruptEvery is after how many comprehensions an expression checks whether its time is over.
	interruptEvery = 100
	// mostCompiled is how many expressions are kept compiled.
	mostCompiled = 512
)

// Expression is the compiled expression of a CEL gate, with the libraries of the API server.
type Expression struct {
	program         cel.Program
	objects, object string // the variables' names
}

// expressionKey identifies a compiled expression.
type expressionKey struct {
	text         string
	named, nodes bool
}

// expressions are the last expressions that were compiled. They are kept because policies are read at every look at the
// cluster.
var expressions = struct {
	sync.Mutex

	compiled map[expressionKey]*Expression
}{compiled: map[expressionKey]*Expression{}}

// Compile reads the expression of a gate, which is about a stage or about a node.
func Compile(g *api.CELGate, ofStage bool) (*Expression, error) {
	key := expressionKey{g.Expression, g.Name != "", ofStage}
	expressions.Lock()
	defer expressions.Unlock()
	if e := expressions.compiled[key]; e != nil {
		return e, nil
	}
	e, err := compile(key)
	if err != nil {
		return nil, err
	}
	if len(expressions.compiled) >= mostCompiled {
		clear(expressions.compiled)
	}
	expressions.compiled[key] = e
	return e, nil
}

func compile(key expressionKey) (*Expression, error) {
	e := &Expression{objects: varObjects, object: varNode}
	objects, about := cel.ListType(cel.DynType), cel.DynType
	if key.named {
		e.objects, objects = varObject, cel.DynType
	}
	if key.nodes {
		e.object, about = varNodes, cel.ListType(cel.DynType)
	}
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable(e.objects, objects), cel.Variable(e.object, about)},
	})
	if err != nil {
		return nil, fmt.Errorf("preparing expressions: %w", err)
	}
	env := set.NewExpressionsEnv()
	ast, issues := env.Compile(key.text)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("it has to be true or false, and is a %s", t)
	}
	e.program, err = env.Program(ast, cel.CostLimit(celconfig.RuntimeCELCostBudget),
		cel.InterruptCheckFrequency(interruptEvery))
	return e, err
}

// Holds evaluates the expression and reports whether it is true. objects is one object if the gate names one, otherwise
// a list. about is the Node, or for a stage the list of its Nodes.
func (e *Expression) Holds(ctx context.Context, objects, about any) (bool, error) {
	value, _, err := e.program.ContextEval(ctx, map[string]any{e.objects: objects, e.object: about})
	if err != nil {
		return false, err
	}
	if value.Type() != types.BoolType {
		return false, errors.New("it has to be true or false, and is a " + value.Type().TypeName())
	}
	return value == types.True, nil
}
