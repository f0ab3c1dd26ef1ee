"""What the list of faults expects in a training's output is what pretrain says."""

import re

from chaos.fault_list import faults_of
from pretrain.launch.nodes.reports import silent_node


def test_a_node_whose_launcher_is_killed_is_named_as_the_launcher_names_it():
    fault = next(fault for fault in faults_of(2) if fault.name == "kill -9 of a node's launcher")
    text = silent_node(1, "vm", 6.0).text
    assert any(re.search(said, text) for said in fault.endings[0].says)
