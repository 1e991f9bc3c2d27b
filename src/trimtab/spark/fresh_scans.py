"""Every query plans its own read: a rule for Spark's optimizer, without which filters must not reach the source.

Spark 4.3 keeps what a Python source planned (its partitions, narrowed by the filters of that query) with the
*relation*, and every other query of the same DataFrame or view gets the same:

    frame = spark.read.format("trimtab").option("table", "shop.users").load()
    frame.filter("id = 5").count()     1
    frame.count()                      1, and not all rows; and frame never sees a load that comes later

The rule gives each query a relation of its own before filters are pushed down. It is a few lines of Java that Spark's
own compiler (Janino, which it has for generated code) makes into a class when a session starts. Where that does not
work (another version of Spark, a session that has optimized queries already, Spark Connect) the source is registered
without push-down: then more is read, and nothing is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RULE = "trimtab.FreshScans"
_SETTING = "spark.trimtab.freshScans"  # of a session: what came of it
_JAVA = """
package trimtab;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

public class FreshScans extends Rule {
    public TreeNode apply(TreeNode plan) {
        return ((LogicalPlan) plan).transformDown(new Replacing());
    }

    public static class Making extends AbstractFunction1 {
        public Object apply(Object session) {
            return new FreshScans();
        }
    }

    public static class FreshTable extends PythonTable {
        public FreshTable(PythonDataSourceV2 source, PythonTable table) {
            super(source, table.name(), table.schema());
        }
    }

    public static class Replacing extends AbstractPartialFunction {
        public boolean isDefinedAt(Object node) {
            if (!(node instanceof DataSourceV2Relation)) {
                return false;
            }
            Object table = ((DataSourceV2Relation) node).table();
            return table instanceof PythonTable && !(table instanceof FreshTable)
                && ((PythonTable) table).name().equals("trimtab");
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            if (!isDefinedAt(node)) {
                return otherwise.apply(node);
            }
            DataSourceV2Relation relation = (DataSourceV2Relation) node;
            PythonTable table = (PythonTable) relation.table();
            PythonDataSourceV2 source = new PythonDataSourceV2();
            source.setShortName(table.name());
            return relation.copy(new FreshTable(source, table), relation.output(), relation.catalog(),
                relation.identifier(), relation.options(), relation.timeTravelSpec());
        }
    }
}
"""


def install(spark: SparkSession) -> bool:
    """Add the rule to a session that has not optimized anything yet; whether it is in force."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    java_session = getattr(spark, "_jsparkSession", None)
    if java_session is None:
        return False
    known = spark.conf.get(_SETTING, "")
    if not known:
        try:
            known = str(_in_force(java_session)).lower()
        except Py4JError:
            known = "false"
        spark.conf.set(_SETTING, known)
    return known == "true"


def _in_force(java_session: Any) -> bool:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_JAVA)
    made = compiler.getClassLoader().loadClass(f"{_RULE}$Making").getDeclaredConstructors()[0].newInstance(None)
    java_session.extensions().injectOptimizerRule(made)
    # Looking at the optimizer makes it, if there is none yet; one that was there before has no new rule.
    rules = java_session.sessionState().optimizer().extendedOperatorOptimizationRules()
    return any(rules.apply(at).getClass().getName() == _RULE for at in range(rules.size()))
